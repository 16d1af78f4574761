"""What is told of an exception that user code raised."""

import inspect
import pickle

import pytest

import transport.errors
from governor import errors
from governor.errors import ExitCode, GovernorError, from_refusal, refusal_of, text_of
from governor.messages import Fault

KINDS = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, GovernorError) and kind.__module__ == errors.__name__
]
FAULTS = {
    errors.RunFileError: [Fault(path="a.b", message="is missing", line=3)],
    errors.ConfigError: ["a: bad", "b"],
}


def made(kind):
    """An error with a value for each argument that it needs."""
    if "__init__" not in vars(kind):
        return kind("as it is told")
    needed = inspect.signature(kind).parameters.values()
    values = {"faults": FAULTS.get(kind), "seconds": 2.5, "pid": 7}
    return kind(
        **{
            one.name: values.get(one.name, one.name)
            for one in needed
            if one.default is inspect.Parameter.empty
        }
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_goes_through_pickle_as_it_is(kind):
    error = made(kind)
    error.add_note("seen")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))


AS_A_CLIENT_SEES_IT = {
    errors.BadRequest: errors.UsageError,
    errors.JournalError: errors.TryAgain,
    errors.JournalDamaged: errors.GovernorError,
}


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in KINDS
        if "__init__" not in vars(kind) or "message" in inspect.signature(kind).parameters
    ]
    + [errors.RunFileError, errors.ConfigError, errors.ConductorError],
)
def test_a_refusal_makes_the_same_error_again(kind):
    error = made(kind)
    again = from_refusal(refusal_of(error), source="source")
    if "code" in vars(kind):
        assert type(again) is AS_A_CLIENT_SEES_IT.get(kind, kind)
    assert (again.code, again.exit_code) == (error.code, error.exit_code)
    if kind is not errors.RunFileError:
        assert str(again) == str(error)
    assert getattr(again, "faults", ()) == getattr(error, "faults", ())


def test_a_refusal_of_an_unknown_code_is_known_by_its_exit_code():
    refused = refusal_of(errors.TryAgain("later"))
    error = from_refusal(type(refused)(code="new", message="later", exit_code=75), source="")
    assert isinstance(error, errors.TryAgain)
    assert (error.code, error.exit_code) == ("new", ExitCode.TRY_AGAIN)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            transport.errors.ServiceNotFound("governor", "no worker"),
            errors.Unreachable,
            "is `governor serve` running?",
        ),
        (
            transport.errors.ServiceNotFound("mine", "no worker"),
            errors.Unreachable,
            "no RunGovernor 'mine' serves at ipc:///b",
        ),
        (transport.errors.MalformedFrames("no name"), errors.UsageError, "no name"),
    ],
)
def test_an_error_of_the_transport_names_what_was_asked(error, kind, text):
    found = errors.from_transport(error, endpoint="ipc:///b")
    assert type(found) is kind
    assert text in str(found)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no str")


def test_the_text_of_an_exception_is_one_line_and_never_raises():
    assert text_of(ValueError("so\n  it is")) == "so it is"
    assert text_of(Mute()) == "(its text cannot be read: RuntimeError)"
