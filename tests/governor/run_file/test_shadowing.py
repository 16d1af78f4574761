"""A module of the user under a name that conductors have for another one."""

from pathlib import Path

import pytest

from tests.support.run_files import verdicts


@pytest.fixture
def shadowed(tmp_path):
    """Modules of a user under names that conductors have for others."""
    for name in (
        "queue",
        "states",
        "transport",
        "yaml",
        "json/__init__",
        "json/tools",
        "fine",
        "test",
        "utils",
    ):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("def mine(): ...\n")
    (tmp_path / "agents.py").write_text("import fine\nfrom states import mine\nmine()\n")
    (tmp_path / "lazy.py").write_text("import queue\ndef act(): queue.mine()\n")
    return tmp_path


def test_a_module_that_a_conductor_has_another_of_is_named_with_both_files(shadowed):
    targets = ["queue:mine", "states:mine", "transport:mine", "yaml:mine", "json.tools:mine"]
    said = verdicts(shadowed, *targets, "fine:mine", "utils:mine", "os:getcwd")
    assert set(said) == set(targets)
    for target, verdict in said.items():
        name = target.partition(":")[0].partition(".")[0]
        file = shadowed / (name if name == "json" else f"{name}.py")
        assert verdict.startswith(f"module {name!r} is /")
        assert f"{name}/__init__.py in a conductor" in verdict or f"{name}.py in a conductor" in verdict
        assert verdict.endswith(f"in a conductor, not {file}: give that file another name")


def test_a_folder_that_is_no_package_shadows_nothing(tmp_path):
    """Python prefers any module to it."""
    (tmp_path / "statistics").mkdir()
    (tmp_path / "statistics" / "plot.py").write_text("")
    (tmp_path / "mine.py").write_text("import statistics\ndef act(): statistics.mean([1])\n")
    assert verdicts(tmp_path, "mine:act") == {}


def test_so_is_one_that_another_module_of_the_folder_imports(shadowed):
    said = verdicts(shadowed, "agents:mine", "lazy:act")
    assert said["agents:mine"].startswith("module 'agents' imports 'states', which is ")
    assert said["lazy:act"].startswith("module 'lazy' imports 'queue', which is ")
    assert said["lazy:act"].endswith(f"not {shadowed / 'queue.py'}: give that file another name")


def test_modules_with_names_of_their_own_need_no_import_of_the_preload(tmp_path, monkeypatch):
    from governor.run_file import shadowing

    monkeypatch.setattr(shadowing, "_import_as_conductors_do", lambda: pytest.fail("nothing is in doubt"))
    (tmp_path / "agents.py").write_text("")
    assert shadowing.Shadowing(tmp_path).fault("agents") == ""


def test_a_folder_that_is_on_the_path_shadows_nothing_of_its_own():
    """The folder that holds this project, for one: its run file's folder has ``states`` and ``transport`` in it."""
    from governor.run_file import shadowing

    root = Path(shadowing.__file__).parents[2]
    assert verdicts(
        root, "states.table:RULES_", "transport.broker:Broker", "governor:Executor", kind="trained"
    ) == {"states.table:RULES_": "module 'states.table' has no 'RULES_'"}
