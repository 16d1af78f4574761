"""AgentLab from the index, for scripts in processes of their own."""

from __future__ import annotations

from pathlib import Path

from tests.support import from_index

REQUIREMENTS = Path(__file__).parent / "agentlab_requirements.txt"
STAND_INS = {
    # Episodes without a browser and a web site
    "playwright/__init__.py": "",
    "playwright/sync_api.py": "def __getattr__(name):\n    return type(name, (), {})\n",
    "playwright-0.dist-info/METADATA": "Metadata-Version: 2.1\nName: playwright\nVersion: 0\n",
    "browsergym/webarena/__init__.py": "",
    "browsergym/webarena/instance.py": "class WebArenaInstance: ...\n",
}


def install(folder):
    """Into a folder for PYTHONPATH, as `from_index.install`."""
    from_index.install(folder, REQUIREMENTS, what="AgentLab")
    for name, text in STAND_INS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
