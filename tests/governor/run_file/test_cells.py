"""A run file with a matrix: its runs, and its faults, each at the place of the value that has caused it."""

from __future__ import annotations

import textwrap

import pytest

from governor.errors import RunFileError, UsageError
from governor.run_file import cells
from governor.run_file.load import digest, examine, group_in_plain, in_plain, parse_group
from governor.run_file.options import Options

FILE = """\
name: lake
conductors:
  environments:
    lake: {entry: "gymnasium:FrozenLake-v1", params: {is_slippery: false}}
  agents:
    walker: {entry: "q_learner:QLearner", params: {alpha: 0.5}}
phases:
  - name: train
    simulate: {environment: lake, agents: [walker], episodes: 4, max_steps: 100}
  - {name: evaluate, inherits: train, mode: eval, simulate: {episodes: 2}}
  - name: analyse
    tasks:
      - {id: fit.all, call: "analysis:fit", timeout: 30s, args: {lr: 1}}
"""


@pytest.fixture
def read(tmp_path):
    def read(matrix="", **options):
        file = tmp_path / "run.yaml"
        file.write_text(FILE + textwrap.dedent(matrix))
        return examine(file, Options.of(**options) if options else None)

    return read


def params(examined):
    examined.run()
    return [cell.params for cell in examined.cells]


def told(examined):
    return [(fault.path, fault.line, fault.message) for fault in examined.faults]


def test_each_cell_is_a_whole_run_file_with_its_values(read):
    found = read("""\
        matrix:
          conductors.agents.walker.params.alpha: [0.1, 0.3]
          seed: range(2)
          train.simulate.episodes: [8]
          include:
            - {agents.walker.params.alpha: 0.3, limits.wall_clock: 5min}
            - {phases.analyse.tasks.fit.all.args.lr: 0.01, seed: 9}
          max_parallel: 2
        """)
    assert [tuple(each.values()) for each in params(found)] == [
        (0.1, 0, 8),
        (0.1, 1, 8),
        (0.3, 0, 8, "5min"),
        (0.3, 1, 8, "5min"),
        (0.01, 9),
    ]
    third, last = found.cells[2].run, found.cells[-1].run
    assert (third.conductors.agents["walker"].params, third.seed) == ({"alpha": 0.3}, 0)
    assert third.limits.wall_clock == 300
    assert [phase.simulate.episodes for phase in third.phases[:2]] == [8, 2]
    assert last.phases[2].tasks[0].args == {"lr": 0.01}
    assert last.conductors.agents["walker"].params == {"alpha": 0.5}
    assert all(cell.run.matrix is None for cell in found.cells)
    assert len({digest(cell.run) for cell in found.cells}) == 5
    assert found.run().matrix.max_parallel == 2


def test_a_phase_that_inherits_has_the_values_of_the_other_one(read):
    found = read("matrix: {train.simulate.max_steps: [7]}")
    found.run()
    assert [phase.simulate.max_steps for phase in found.cells[0].run.phases[:2]] == [7, 7]


def test_options_are_a_matrix_and_replace_what_the_file_says(read):
    found = read(
        "matrix: {seed: [1, 2], agents.walker.params.alpha: [0.7]}",
        sets=["seed=range(3),9", "agents.walker.params.sizes=[64, 64],[32]"],
        zips=["train.simulate.episodes=1,2", "evaluate.simulate.episodes=3,4"],
        labels=["team=rl"],
        name="other",
    )
    assert len(params(found)) == 4 * 2 * 2
    assert found.cells[0].params == {
        "seed": 0,
        "agents.walker.params.alpha": 0.7,
        "agents.walker.params.sizes": [64, 64],
        "train.simulate.episodes": 1,
        "evaluate.simulate.episodes": 3,
    }
    assert (found.cells[0].run.name, found.cells[0].run.labels) == ("other", {"team": "rl"})
    assert read(sets=["seed=3"]).is_single
    assert not read(sets=["seed=3,4"]).is_single
    assert not read("matrix: {seed: [3]}").is_single


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"sets": ["seed"]}, "--set 'seed' is not KEY=VALUE"),
        ({"sets": ["seed=1", "seed=2"]}, "--set seed is given twice"),
        ({"sets": ["seed="]}, "--set seed: there is no value"),
        ({"zips": ["seed=[1"]}, r"--zip seed: the values '\[1' can't be read"),
        ({"sets": ["seed=range(0)"]}, r"range\(0\) has 0 values"),
        ({"labels": ["team"]}, "--label 'team' is not KEY=VALUE"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(option, why):
    with pytest.raises(UsageError, match=why):
        Options.of(**option)


@pytest.mark.parametrize(
    ("matrix", "faults"),
    [
        (
            "agents.walkr.params.alpha: [1]",
            [("matrix.agents.walkr.params.alpha", 15, "unknown agent 'walkr'; did you mean 'walker'?")],
        ),
        (
            "trian.simulate.episodes: [1]",
            [
                (
                    "matrix.trian.simulate.episodes",
                    15,
                    "'trian' is neither a key of the run file, nor of environments, of agents, of services, nor a phase; did you mean 'train'?",
                )
            ],
        ),
        (
            "train.simulate.episods: [1]",
            [("matrix.train.simulate.episods[0]", 15, "unknown key 'episods'; did you mean 'episodes'?")],
        ),
        (
            "train.simulate.episodes:\n    - 5\n    - many",
            [("matrix.train.simulate.episodes[1]", 17, "must be a whole number, not the text 'many'")],
        ),
        (
            "analyse.tasks.fitt.args.lr: [1]",
            [("matrix.analyse.tasks.fitt.args.lr", 15, "unknown task 'fitt'; there is 'fit.all'")],
        ),
        (
            "max_paralel: [1]",
            [("matrix.max_paralel", 15, "unknown key 'max_paralel'; did you mean 'max_parallel'?")],
        ),
        ("seed.x: [1]", [("matrix.seed.x[0]", 15, "must be a whole number, not a mapping")]),
        ("name.x: [1]", [("matrix.name.x", 15, "name is the text 'lake' in the file, which has no key 'x'")]),
        (
            "agents.walker.params: [{a: 1}]\n  agents.walker.params.alpha: [1]",
            [
                (
                    "matrix.agents.walker.params.alpha",
                    16,
                    "'agents.walker.params.alpha' and 'agents.walker.params' are one place of the run file, or one is in the other",
                )
            ],
        ),
        (
            "zip: {seed: [1, 2], name: [a]}",
            [("matrix.zip[0]", 15, "needs lists of one length: seed has 2, name has 1")],
        ),
        (
            "seed: [1]\n  exclude: [{seed: 1}]",
            [("matrix", 14, "leaves no run: name a key with its values, or exclude less")],
        ),
        (
            "seed: [1, 2]\n  exclude: [{sed: 1}]",
            [
                (
                    "matrix.exclude[0].sed",
                    16,
                    "'sed' is neither a key of the run file, nor of environments, of agents, of services, nor a phase; did you mean 'seed'?",
                )
            ],
        ),
        (
            "seed: [1, 2]\n  exclude: [{name: a}]",
            [("matrix.exclude[0].name", 16, "'name' is no key of the matrix")],
        ),
        ("include: [{seed: 1}, {seed: 1}]", [("matrix", 14, "makes the run with seed=1 twice")]),
        (
            "seed: range(101)\n  name: range(100)",
            [("matrix", 14, "makes 10100 runs; a group has 10000 at most")],
        ),
    ],
)
def test_every_fault_has_its_place_and_the_nearest_right_word(read, matrix, faults):
    assert told(read(f"matrix:\n  {matrix}\n")) == faults


def test_a_fault_that_only_some_runs_have_names_the_first_of_them(read):
    [fault] = told(
        read("matrix:\n  train.simulate.workers: [1, 3]\n  lake.x: [1]\n".replace("  lake.x: [1]\n", ""))
    )
    assert fault[0] == "matrix.train.simulate.workers[1]"
    assert "3 workers need a pool of 3" in fault[2]


def test_faults_of_options_name_the_option(read):
    found = read(sets=["train.simulate.episodes=5,many", "seed=-1"], labels=["te am=x"])
    assert [(fault.path, fault.line) for fault in found.faults] == [
        ("--label", None),
        ("--set train.simulate.episodes", None),
        ("--set seed", None),
    ] or {fault.path for fault in found.faults} == {"--label"}
    found = read(sets=["train.simulate.episodes=5,many", "seed=-1"])
    assert {(fault.path, fault.line) for fault in found.faults} == {
        ("--set train.simulate.episodes", None),
        ("--set seed", None),
    }


def test_faults_of_user_code_are_at_the_place_of_the_value(read):
    found = read("matrix: {agents.walker.entry: ['a:A', 'b:B'], seed: [1, 2]}")
    asked = cells.with_entries([], found.cells)
    assert {entry.target for entry in asked} == {"gymnasium:FrozenLake-v1", "a:A", "b:B", "analysis:fit"}
    [number] = {entry.place[0] for entry in asked if entry.target == "b:B"}
    place = (number, "conductors", "agents", "walker", "entry")
    assert cells.in_file(found.cells, [(place, "no"), (("name",), "no")]) == [
        (("name",), "no"),
        (("matrix", "agents.walker.entry", 1), "no"),
    ]


def test_a_group_in_plain_is_read_again_as_the_same_group(read):
    found = read("matrix: {train.simulate.episodes: [3, 5], seed: range(2)}")
    data, folder, _ = group_in_plain(found, None)
    run, made = parse_group(data)
    assert [cell.run for cell in made] == [cell.run for cell in found.cells]
    assert digest(run) == digest(parse_group(group_in_plain(run, folder)[0])[0])
    changes = {"matrix": {"seed": [7]}, "name": "other", "labels": {"a": "b"}}
    for given in (found, run, data):
        run, made = parse_group(group_in_plain(given, None, **changes)[0])
        assert [tuple(cell.params.values()) for cell in made] == [(3, 7), (5, 7)]
        assert (run.name, run.labels) == ("other", {"a": "b"})
    with pytest.raises(UsageError, match="has a matrix, it is a group of runs"):
        in_plain(found, None)
    for given in (None, 3):
        with pytest.raises(UsageError, match=r"a run is a file, a governor\.Run or a mapping, not"):
            group_in_plain(given, None)
        with pytest.raises(UsageError, match=r"a run is a file, a governor\.Run or a mapping, not"):
            in_plain(given, None)
    with pytest.raises(
        UsageError, match="absent is no folder, and can't be the one that the run's code is in"
    ):
        group_in_plain(data, f"{folder}/absent")
    with pytest.raises(RunFileError, match="must be a whole number"):
        group_in_plain({**data, "matrix": {"seed": ["x"]}}, None)
