"""The client works alone: with httpx, msgspec and what httpx itself needs."""

import subprocess
import sys
from pathlib import Path

import rollbook_client

_SCRIPT = """
import asyncio, sys

HTTPX = {"anyio", "certifi", "h11", "httpcore", "httpx", "idna", "sniffio", "typing_extensions"}
ALLOWED = HTTPX | {"msgspec", "rollbook_client"} | set(sys.stdlib_module_names)
# httpx and anyio look for these and do without.
OPTIONAL = {"brotli", "brotlicffi", "h2", "socksio", "trio", "zstandard", "uvloop", "exceptiongroup"}
OPTIONAL |= {"click", "rich", "pygments"}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ALLOWED or top.startswith("_"):
            return None
        if top in OPTIONAL:
            raise ImportError(name)
        raise SystemExit(f"imported {name}")


sys.meta_path.insert(0, Blocker())

import httpx
from rollbook_client import RolloutClient, RolloutStatus
import pkgutil, importlib, rollbook_client
for module in pkgutil.walk_packages(rollbook_client.__path__, "rollbook_client."):
    importlib.import_module(module.name)


async def main():
    ends = {
        "POST": (202, {"rollout_id": "r", "status": "queued", "polling_lease_token": "t",
                       "result_wait_timeout_sec": 1, "polling_lease_timeout_sec": 9}),
        "GET": (200, {"rollout_id": "r", "status": "success"}),
    }
    def answer(request):
        code, body = ends[request.method]
        return httpx.Response(code, json=body)
    client = RolloutClient(url="http://x", http_client=httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    print((await client.run_rollout([], "http://chat", "r")).status)

asyncio.run(main())
"""


def test_it_imports_nothing_else_and_runs() -> None:
    folder = Path(rollbook_client.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{_SCRIPT}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("success\n", 0), done.stderr
