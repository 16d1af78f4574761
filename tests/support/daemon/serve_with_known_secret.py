"""`governor serve` with a secret that the test knows; only its bytes differ from a normal start."""

import hashlib
import runpy

from transport import access

SECRET = access.Secret(hashlib.sha256(b"known to the tests").digest())

if __name__ == "__main__":
    access.Secret.new = classmethod(lambda _: SECRET)
    runpy.run_module("governor", run_name="__main__", alter_sys=True)
