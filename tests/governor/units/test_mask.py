"""What takes the place of secrets in lines and reports."""

import json

import msgspec
import pytest

from governor.units.mask import Mask

KEY = 'sk-"5f/ü+ 8\\'


@pytest.mark.parametrize(
    "written",
    [KEY, json.dumps(KEY)[1:-1], "sk-%225f%2F%C3%BC%2B%208%5C"],
)
def test_a_value_is_masked_as_it_is_in_json_and_in_a_url(written):
    mask = Mask({"API_KEY": KEY})
    assert mask
    assert mask.text(f"401 for {written}: {written}!") == "401 for [secret API_KEY]: [secret API_KEY]!"
    assert mask.text("nothing of it") == "nothing of it"


def test_the_longer_of_two_secrets_is_found_first():
    mask = Mask({"SHORT": "password", "LONG": "password-of-root"})
    assert mask.text("password-of-root, password") == "[secret LONG], [secret SHORT]"


def test_each_line_of_a_secret_is_masked_unless_it_is_too_short_to_tell():
    mask = Mask({"PEM": "-----BEGIN KEY-----\nMIIEvQIBADANB\n=="})
    assert mask.text("x MIIEvQIBADANB y ==") == "x [secret PEM] y =="


def test_all_texts_of_a_message_are_masked_and_nothing_else_changes():
    mask = Mask({"API_KEY": KEY})
    message = {"reason": f"x {KEY}", "list": [1, 0.5, None, True, b"raw", {KEY: KEY}], "other": "y"}
    found = msgspec.msgpack.decode(mask.packed(msgspec.msgpack.encode(message)))
    hidden = "[secret API_KEY]"
    assert found == {
        "reason": f"x {hidden}",
        "list": [1, 0.5, None, True, b"raw", {hidden: hidden}],
        "other": "y",
    }


def test_a_message_without_a_secret_is_not_even_read():
    assert Mask({"API_KEY": KEY}).packed(b"\xc1 no msgpack") == b"\xc1 no msgpack"
    assert Mask().packed(b"\xc1") == b"\xc1"
    assert not Mask()
