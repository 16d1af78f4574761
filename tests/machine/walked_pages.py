"""What the pages of docs/ say to an administrator, word by word: their blocks with `<!-- test: machine NAME -->`, by name."""

from __future__ import annotations

from tests.docs import matching, pages, running

COMMAND_SECONDS = 600.0
NAMES = ("network.md", "operations.md", "service.md")


def blocks():
    """Raises AssertionError where two have one name."""
    found = {}
    for name in NAMES:
        for block in pages.read(pages.ROOT / "docs" / name).blocks:
            for step in block.of("machine") or ():
                assert step not in found, f"{name}:{block.line}: another block is {step!r}, too"
                found[step] = block
    return found


class Walk:
    """Does what the page says, in a machine; `done` are the names of the blocks. $RUN of one block is there in those that follow."""

    def __init__(self, machine):
        self.done = set()
        self._machine = machine
        self._blocks = blocks()
        self._run = ""

    def text(self, name):
        self.done.add(name)
        return self._blocks[name].content

    def write(self, name):
        """The file that a block shows, with its title as path."""
        self._machine.write(self._blocks[name].title, self.text(name))

    def drop_in(self, name):
        """What `systemctl edit run-governor` would write, with a restart."""
        self._machine.write("/etc/systemd/system/run-governor.service.d/override.conf", self.text(name))
        self._machine.run("systemctl daemon-reload; systemctl restart run-governor")

    def commands(self, name, *, user="", before="cd /root/run-governor"):
        """Runs them; each must end with 0, and print what the page shows."""
        block = self._blocks[name]
        if block.language == "sh":
            script = f"set -euo pipefail; {before}\n{self.text(name)}"
            return self._machine.run(script, user=user, seconds=COMMAND_SECONDS).output
        for command in running.commands_of(block, "docs"):
            script = f'{before}\nRUN={self._run}\n{command.text}\necho "==RUN=$RUN"'
            output = self._machine.run(script, user=user, seconds=COMMAND_SECONDS).output
            output, _, run = output.rpartition("==RUN=")
            self._run = run.strip()
            wrong = matching.difference(command.output, output)
            assert not wrong, f"docs:{command.line}: $ {command.text}\n{wrong}\nwhole output:\n{output}"
        self.done.add(name)
        return output
