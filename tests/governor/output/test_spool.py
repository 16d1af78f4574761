"""The files that lines are written to, and what stands before a line."""

import os

import msgspec

from governor.output import spool


def test_a_fragment_is_json_whatever_is_in_it():
    fields = {"task": 'a"\\\n\x1f\udcff', "run": 3, "more": 0.5}
    text = fields["task"].encode("utf-8", "backslashreplace").decode()
    for made in (spool.fragment(**fields), spool.fragment_of_task(fields["task"], 3, 1)):
        decoded = msgspec.json.decode(b"{%b}" % made.rstrip(b","))  # as the reader does
        assert (decoded["task"], decoded["run"]) == (text, 3)


def test_the_folders_of_spools_are_for_the_user_alone(tmp_path):
    os.close(spool.create(spool.folder_of(tmp_path), "a@1-1", "out"))
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("logs", "logs/spool")} == {0o700}
