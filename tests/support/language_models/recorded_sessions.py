"""Sessions of a language model, recorded."""

from governor.episodes.text.sessions import DataManager

__all__ = ["DataManager", "record", "session"]


def session(manager, **more):
    return manager.create_session(
        **{"env_id": 3, "env_name": "maths", "llm_model": "m", "group_id": None, **more}
    )


def record(manager, session, step_id=0, **more):
    values = {
        "messages": [{"role": "user", "content": "2 + 2?"}], "response": "4", "step_reward": 0.5, "env_state": {"n": 1},
        "terminated": False, "truncated": False, "is_trainable": True,
    }  # fmt: skip
    manager.record_step(session=session, step_id=step_id, **{**values, **more})
