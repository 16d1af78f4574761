"""What is told of an exception that user code raised."""

from governor.errors import text_of


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no str")


def test_the_text_of_an_exception_is_one_line_and_never_raises():
    assert text_of(ValueError("so\n  it is")) == "so it is"
    assert text_of(Mute()) == "(its text cannot be read: RuntimeError)"
