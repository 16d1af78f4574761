"""Parts of run files and configurations on a page: every key is checked against the model, what is missing is not counted."""

from __future__ import annotations

import json
import tomllib
from typing import get_args

from pydantic import BaseModel

from governor.config import Config
from governor.run_file import yaml_lines
from governor.run_file.model import Run
from governor.units.sections import spell, validated


def faults_of(language, text):
    """The faults of an untitled block, in words."""
    match language:
        case "yaml":
            return _yaml_faults(text)
        case "toml":
            return _toml_faults(text)
        case "json":
            return _json_faults(text)
    return []


def _yaml_faults(text):
    document = yaml_lines.read(text)
    if document.faults:
        return [message for _, _, message in document.faults]
    items = document.data if isinstance(document.data, list) else [document.data]
    return [fault for item in items for fault in _section_faults(item)]


def _section_faults(data):
    if not isinstance(data, dict):
        return ["a fragment is a mapping, or a list of mappings"]
    keys = {key for key in data if not key.startswith("x-")}
    candidates = [model for model in sections_of(Run) if keys <= set(model.model_fields)]
    if Run in candidates:
        candidates = [Run]
    if not candidates:
        candidates = [max(sections_of(Run), key=lambda model: len(keys & set(model.model_fields)))]
    return min((_counted(data, model) for model in candidates), key=len)


def _counted(data, model):
    given = {key: value for key, value in data.items() if not key.startswith("x-")}
    if model is Run and isinstance(given.get("phases"), list):
        given["phases"] = _without_foreign_bases(given["phases"])
    return [
        f"{spell(path)}: {message}"
        for path, message in validated(given, model)[1]
        if "is missing" not in message
    ]


def _without_foreign_bases(phases):
    """Phases whose base stands in the same fragment keep their `inherits`."""
    names = {phase.get("name") for phase in phases if isinstance(phase, dict)}
    return [
        {key: value for key, value in phase.items() if key != "inherits" or value in names}
        if isinstance(phase, dict)
        else phase
        for phase in phases
    ]


def sections_of(model, found=None):
    """`model` and all sections below it."""
    found = {} if found is None else found
    found[model] = None
    for field in model.model_fields.values():
        for section in _models(field.annotation):
            if section not in found:
                sections_of(section, found)
    return list(found)


def _models(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _toml_faults(text):
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [str(error)]
    folders = {"state_dir": "/var/lib/run-governor", "runtime_dir": "/run/run-governor"}
    return [f"{spell(path)}: {message}" for path, message in validated({**folders, **given}, Config)[1]]


def _json_faults(text):
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return [str(error)]
    return []
