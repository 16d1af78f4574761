"""The environment: a game in text, here the guessing of a number."""

from __future__ import annotations

import random
from typing import Any

RULES = "I think of a number from 1 to 100. Guess it: answer with a number alone."


class GuessingGame:
    """One game at a time. A language model gets the prompt, and its answer is the action."""

    def reset(self, *, seed: int) -> None:
        """Begins a new game."""
        self.number = random.Random(seed).randint(1, 100)
        self.messages = [{"role": "system", "content": RULES}, {"role": "user", "content": "Your guess?"}]

    def get_task_prompt(self) -> list[dict[str, str]]:
        """The conversation so far, as chat messages."""
        return self.messages

    def step(self, action: str) -> dict[str, Any]:
        """Takes the model's answer; returns the reward, and whether the game is over."""
        guess = int(action) if action.strip().isdecimal() else 0
        won = guess == self.number
        answer = "Yes!" if won else "Higher." if guess < self.number else "Lower."
        self.messages += [{"role": "assistant", "content": action}, {"role": "user", "content": answer}]
        return {"reward": float(won), "terminated": won, "truncated": False, "info": {}}
