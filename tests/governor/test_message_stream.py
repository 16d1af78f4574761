"""Messages with a length prefix: whole ones only, whatever the pieces in which they arrive."""

import socket
import struct
import threading

import pytest

from governor.message_stream import MessageBuffer, MessageStream, MessageTooLarge, StreamClosed, framed


@pytest.fixture
def pair():
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1000])
def test_messages_come_whole_from_pieces_of_any_size(size):
    messages = [b"", b"a", b"b" * 300, b""]
    data = b"".join(map(framed, messages))
    buffer, found = MessageBuffer(), []
    for start in range(0, len(data), size):
        buffer.feed(data[start : start + size])
        while (message := buffer.next_message(bytes)) is not None:
            found.append(message)
    assert found == messages
    assert len(buffer) == 0


def test_a_message_that_is_too_large_is_refused_when_it_is_announced():
    buffer = MessageBuffer(max_bytes=4)
    buffer.feed(framed(b"1234") + struct.pack("<I", 5))
    assert buffer.next_message(bytes) == b"1234"
    with pytest.raises(MessageTooLarge, match="5 bytes"):
        buffer.next_message(bytes)


def test_a_message_that_cannot_be_decoded_raises_what_the_decoder_raises():
    buffer = MessageBuffer()
    buffer.feed(framed(b"no number") + framed(b"7"))
    with pytest.raises(ValueError, match="invalid literal"):
        buffer.next_message(lambda view: int(bytes(view)))


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1000])
def test_all_whole_messages_are_taken_at_once(size):
    messages = [b"", b"a", b"b" * 300, b""]
    data = b"".join(map(framed, messages))
    buffer, found = MessageBuffer(), []
    for start in range(0, len(data), size):
        buffer.feed(data[start : start + size])
        buffer.next_messages(bytes, into=found, most=100)
    assert found == messages
    assert len(buffer) == 0


def test_of_many_messages_no_more_are_taken_than_wanted():
    buffer, found = MessageBuffer(), []
    buffer.feed(framed(b"1") + framed(b"2") + framed(b"3"))
    buffer.next_messages(bytes, into=found, most=2)
    assert found == [b"1", b"2"]
    assert buffer.next_message(bytes) == b"3"


@pytest.mark.parametrize(
    ("bad", "error"),
    [(framed(b"no number"), ValueError), (struct.pack("<I", 100), MessageTooLarge)],
)
def test_those_before_a_fault_are_taken_and_the_fault_stays(bad, error):
    buffer, found = MessageBuffer(max_bytes=50), []
    buffer.feed(framed(b"1") + framed(b"2") + bad)
    for _ in range(2):
        with pytest.raises(error):
            buffer.next_messages(lambda view: int(bytes(view)), into=found, most=100)
    assert found == [1, 2]
    assert len(buffer) == len(bad)


def test_what_does_not_fit_is_sent_later_in_order(pair):
    writer = MessageStream(pair[0])
    reader = MessageStream(pair[1])
    messages = [b"1" * 3_000_000, b"2"]
    for message in messages:
        writer.send(message)
    assert writer.unsent
    found = []
    while len(found) < len(messages):
        if writer.unsent:
            writer.flush()
        reader.receive()
        while (message := reader.next_message(bytes)) is not None:
            found.append(message)
    assert found == messages
    assert reader.receive() is False


def test_a_blocking_reader_waits_and_sees_the_end(pair):
    reader = MessageStream(pair[0], blocking=True)

    def write():
        for byte in framed(b"late"):
            pair[1].sendall(bytes([byte]))
        pair[1].close()

    writing = threading.Thread(target=write)
    writing.start()
    assert reader.wait_message(bytes) == b"late"
    writing.join()
    with pytest.raises(StreamClosed):
        reader.wait_message(bytes)


def test_sending_to_a_closed_end_raises(pair):
    pair[1].close()
    with pytest.raises(StreamClosed):
        MessageStream(pair[0]).send(b"x")
