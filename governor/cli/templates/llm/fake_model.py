"""A stand-in for a language model: a server of OpenAI chat completions that reads the game's answers, and bisects.

`python fake_model.py COMMAND ...` serves while the command runs, and ends with its exit code.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

PORT = 8102
"""As in `run.yaml`."""


def answer(messages: list[dict[str, str]]) -> str:
    """The next guess."""
    low, high = 1, 100
    for mine, theirs in pairwise(messages):
        if mine["role"] == "assistant":
            guess = int(mine["content"])
            low, high = (guess + 1, high) if theirs["content"] == "Higher." else (low, guess - 1)
    return str((low + high) // 2)


class Handler(BaseHTTPRequestHandler):
    """``POST /v1/chat/completions``."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": answer(asked["messages"])}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21}
        completion = {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"]}
        body = json.dumps({**completion, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """No line for each request."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = subprocess.Popen(sys.argv[1:])
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command, which ends in order
    sys.exit(command.wait())
