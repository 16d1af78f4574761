"""Ids of Gymnasium, ``[module:]ID``: the environment that is registered as one, or what to write or install instead.

A package registers its ids when it is imported; ``module:`` imports it first. Of well-known packages it is known which ids
are theirs, so that an id without its module is answered with the entry to write. This runs user code: the module's.
"""

from __future__ import annotations

import difflib
import re
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from governor.errors import ConductorError
from governor.failures import one_line, reason_of

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

MAKE: Final = frozenset({"max_episode_steps", "disable_env_checker", "render_mode"})
"""Keywords that `gymnasium.make` takes itself."""


class _Family(NamedTuple):
    """Ids that a package registers when `module` is imported."""

    pattern: str
    module: str
    package: str


_FAMILIES: Final = (
    _Family(r"ALE/|.*NoFrameskip-v\d", "ale_py", "ale-py"),
    _Family(r"(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    _Family(r"MiniWorld-", "miniworld", "miniworld"),
    _Family(r"(Fetch|HandReach|HandManipulate|Adroit|AntMaze|PointMaze|FrankaKitchen)", "gymnasium_robotics", "gymnasium-robotics"),
    _Family(r"(highway|merge|roundabout|parking|intersection|racetrack|exit|two-way|u-turn|lane-keeping)-", "highway_env", "highway-env"),
    _Family(r"mo-", "mo_gymnasium", "mo-gymnasium"),
    _Family(r"Panda", "panda_gym", "panda-gym"),
    _Family(r"Meta-World/", "metaworld", "metaworld"),
    _Family(r"dm_control/", "shimmy", "shimmy[dm-control]"),
    _Family(r"FlappyBird-", "flappy_bird_gymnasium", "flappy-bird-gymnasium"),
)  # fmt: skip


def spec_of(identifier: str) -> EnvSpec:
    """What is registered as ``[module:]ID``; without a version the highest one, as `gymnasium.make` takes it.

    Raises ConductorError, which tells what to write or to install.
    """
    import gymnasium  # noqa: PLC0415  # 0.2 s, only where such an environment is used
    from gymnasium.envs import registration  # noqa: PLC0415  # as above

    module, colon, name = identifier.rpartition(":")
    if colon:
        _import(module, name)
    try:
        namespace, plain, version = registration.parse_env_id(name)
        if version is None:
            version = registration.find_highest_version(namespace, plain)
            name = registration.get_env_id(namespace, plain, version)
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise ConductorError(
            f"gymnasium has no environment {name!r}{_instead(module, name, error)}"
        ) from error


def creator_of(identifier: str) -> Any:
    """The class or function behind an id. Raises what its module raises, and ConductorError."""
    from gymnasium.envs.registration import load_env_creator  # noqa: PLC0415  # as above

    found = spec_of(identifier).entry_point
    return load_env_creator(found) if isinstance(found, str) else found


def _import(module: str, name: str) -> None:
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise ConductorError(reason_of(error).within(f"module {module!r} does not import")) from error
        package = next((one.package for one in _FAMILIES if one.module == module), "")
        known = f": install the package {package}" if package else ", which should register " + repr(name)
        raise ConductorError(f"there is no module {module!r}{known}") from error
    except BaseException as error:  # user code, which may also exit
        raise ConductorError(reason_of(error).within(f"module {module!r} does not import")) from error


def _instead(module: str, name: str, error: Exception) -> str:
    """What to do about an id that is not registered."""
    import gymnasium  # noqa: PLC0415  # as above

    family = next((one for one in _FAMILIES if re.match(one.pattern, name)), None)
    if family is not None and not module:
        write = f"write gymnasium:{family.module}:{name}"
        if find_spec(family.module) is None:
            return f": install the package {family.package}, and {write}"
        _import(family.module, name)
        if name in gymnasium.registry:
            return f": {write}"
        module = family.module
    near = difflib.get_close_matches(name, list(gymnasium.registry), n=3, cutoff=0.7)
    if not near:
        return f" ({one_line(error)})"
    if family is not None:
        near = [f"gymnasium:{module}:{each}" for each in near]
    return f"; did you mean {' or '.join(map(repr, near))}?"
