"""What a machine is made of: a Debian tree, and the packages that governor needs, both made once and kept below one folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = ("systemd-sysv", "dbus", "libpam-systemd", "python3", "python3-venv")
BUILDS = "setuptools>=69"
SOURCE = "root/run-governor"
"""Where the source tree is in the machine."""
OF_THE_WHEEL = ("governor", "states", "transport", "setup.cfg", "pyproject.toml", "README.md")
"""What governor's own wheel is made of."""


def missing():
    """Why no machine can be made here, or ""."""
    if os.geteuid() != 0:
        return "it needs root"
    tools = [
        name for name in ("debootstrap", "systemd-nspawn", "nsenter", "git") if shutil.which(name) is None
    ]
    return f"it needs {', '.join(tools)}: apt-get install debootstrap systemd-container" if tools else ""


def base(folder):
    """The tree without governor."""
    tree = folder / "base"
    if not tree.is_dir():
        part = folder / "base.part"
        shutil.rmtree(part, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, part, MIRROR]
        subprocess.run(command, check=True)
        part.rename(tree)
    return tree


def fresh(folder, name):
    """A tree of its own, in place of an earlier one."""
    tree = folder / name
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(["cp", "--archive", "--reflink=auto", base(folder), tree], check=True)
    return tree


def source(*below):
    """The files that git knows, all or `below` these; as paths in the source tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *below]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


def put_source(place, *, changed=()):
    """Copies what git knows of the source tree, as it is now; `changed` are (file, text, other text)."""
    shutil.rmtree(place, ignore_errors=True)
    for name in source():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name)
    for name, text, other in changed:
        whole = (place / name).read_text()
        assert whole.count(text) == 1, f"{name} has {text!r} {whole.count(text)} times"
        (place / name).write_text(whole.replace(text, other))


def packages(folder, commands):
    """The folder `wheels` that the page's commands make where there is a network, with what an index has besides for building governor. They are
    run again once they, the pins or what the wheel is made of change.
    """
    wheels = folder / "wheels"
    scripts = (commands, f"python3 -m pip download --dest wheels '{BUILDS}'")
    made_of = hashlib.sha256("\0".join(scripts).encode())
    for name in source("requirements.txt", *OF_THE_WHEEL):
        made_of.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    digest = made_of.hexdigest()
    mark = wheels / ".of"
    if not (mark.exists() and mark.read_text() == digest):
        shutil.rmtree(wheels, ignore_errors=True)
        put_source(folder / "source")
        for script in scripts:
            subprocess.run(["bash", "-euxc", script], cwd=folder / "source", check=True)
        shutil.move(folder / "source" / "wheels", wheels)
        mark.write_text(digest)
    return wheels
