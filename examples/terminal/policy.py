"""A model server without a model: it knows the ten tasks, and what one does well or badly about each.

    python examples/terminal/policy.py [--port 9000]

Below `/right/v1` it does them right, below `/wrong/v1` wrong, and below `/mixed/v1` every other one; below `/broken/v1`
each request fails. It is for trying things out, and for tests; it holds no state, for what comes next is counted in the
conversation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TASKS = Path(__file__).with_name("tasks")
PATH_END = "/v1/chat/completions"
GIVE_UP = "GIVE UP"

RIGHT: dict[str, Sequence[str]] = {
    "count-words": [
        "cat poem.txt",
        "grep -oE '[A-Za-z]+' poem.txt | tr A-Z a-z | sort -u | wc -l > answer.txt; cat answer.txt",
    ],
    "csv-sums": [
        "head -4 orders.csv",
        # From the right, where no commas are quoted.
        "awk -F, 'NR > 1 { sum[$(NF-2)] += $(NF-1) * $NF } END { for (r in sum) printf \"%s,%.2f\\n\", r, sum[r] }' "
        "orders.csv | sort > totals.csv; cat totals.csv",
    ],
    "find-large": [
        "find store -maxdepth 2 | head",
        "find store -type f -size +102400c | LC_ALL=C sort > answer.txt; cat answer.txt",
    ],
    "fix-script": [
        "cat pack.sh; find notes",
        "cat > pack.sh <<'END'\n"
        "#!/bin/sh\n"
        "# pack.sh FOLDER TARGET: copies the text files below FOLDER into TARGET and prints how many.\n"
        'mkdir -p "$2"\n'
        'find "$1" -type f -name \'*.txt\' -exec cp {} "$2" \\; -exec printf . \\; | wc -c\n'
        "END",
        'sh pack.sh notes "$(mktemp -d)"',
    ],
    "git-archaeology": [
        "cd project && git log --oneline --graph",
        "cd project && git log -p --format='%h %s' -- settings.ini | grep -E '^[0-9a-f]{7} |tok_'",
        "cd project && token=$(git log -p --format= -- settings.ini | grep -oE 'tok_[a-z0-9]+' | head -1) && "
        'echo "$token $(git log -1 --format=%s -S "$token" -- settings.ini)" > ../answer.txt && cat ../answer.txt',
    ],
    "log-search": [
        "ls -l logs; head -3 logs/server.log",
        "{ zcat logs/*.gz; cat logs/server.log; } | "
        'awk \'$2 == "start" { from[$3] = $1 } $2 == "end" { to[$3] = $1 } '
        "END { for (id in to) print to[id] - from[id], id }' | sort -rn | head -1 | cut -d ' ' -f 2 > answer.txt; "
        "cat answer.txt",
    ],
    "makefile": [
        "cat Makefile render; ls parts",
        "cat > Makefile <<'END'\n"
        "parts := $(sort $(wildcard parts/*.txt))\n\n"
        ".DELETE_ON_ERROR:\n\n"
        "report.txt: $(parts) render Makefile\n"
        "\t@set -e; for part in $(parts); do ./render $$part; done > $@\n"
        "END",
        "make && cat report.txt && make -q",
    ],
    "permissions": [
        "find site -exec stat -c '%a %n' {} +",
        "find site -type d -exec chmod 755 {} + && find site -type f -exec chmod 644 {} + && "
        "find site/bin -maxdepth 1 -type f -exec chmod 755 {} + && chmod -R u=rwX,go= site/private",
    ],
    "regex": [
        "cat good.txt bad.txt",
        "n='(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])'; "
        'echo "^($n\\.){3}$n\\$" > pattern.txt; grep -Ef pattern.txt good.txt; grep -Ef pattern.txt bad.txt',
    ],
    "sort-versions": [
        "head -3 releases.txt",
        "sort -k 1,1V -k 2,2 releases.txt | awk '!seen[$1]++' > sorted.txt; cat sorted.txt",
    ],
}

WRONG: dict[str, Sequence[str]] = {
    "count-words": ["grep -oE '[A-Za-z]+' poem.txt | sort -u | wc -l > answer.txt"],
    "csv-sums": [
        "awk -F, 'NR > 1 { sum[$3] += $4 * $5 } END { for (r in sum) printf \"%s,%.2f\\n\", r, sum[r] }' orders.csv | "
        "sort > totals.csv"
    ],
    "find-large": ["find store -type f -size +99k | LC_ALL=C sort > answer.txt"],
    "fix-script": [
        'sed -i \'s/ \\$1/ "$1"/; s/ \\$2/ "$2"/; s/ \\$file/ "$file"/\' pack.sh',
        'sh pack.sh notes "$(mktemp -d)"',
    ],
    "git-archaeology": ["cd project && git grep -n tok_", GIVE_UP],
    "log-search": ["awk '$2 == \"end\" { print $3 }' logs/server.log | tail -1 > answer.txt"],
    "makefile": ["cat Makefile"] * 1_000,
    "permissions": ["chmod -R 755 site"],
    "regex": ["echo '^[0-9]+[.][0-9]+[.][0-9]+[.][0-9]+$' > pattern.txt"],
    # Over the list that was to stay as it is.
    "sort-versions": ["sort -V -o releases.txt releases.txt; cp releases.txt sorted.txt"],
}


def commands_of(kind: str, task: str) -> Sequence[str]:
    """What is done about a task by the policy `right`, `wrong` or `mixed`."""
    if kind == "mixed":
        kind = "right" if sorted(RIGHT).index(task) % 2 == 0 else "wrong"
    return {"right": RIGHT, "wrong": WRONG}[kind][task]


def task_of(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The task that a conversation is about, by its prompt."""
    prompts = {(TASKS / task / "prompt.md").read_text(encoding="utf-8").strip(): task for task in RIGHT}
    asked = [str(message["content"]).strip() for message in messages if message["role"] == "user"]
    return next((prompts[text] for text in asked if text in prompts), None)


def answer(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The completion that follows."""
    messages = body["messages"]
    task = task_of(messages)
    turn = sum(message["role"] == "assistant" for message in messages)
    commands = [] if task is None else commands_of(kind, task)
    message: dict[str, Any] = {"role": "assistant", "content": "Done."}
    if task is None:
        message["content"] = f"{GIVE_UP}: I do not know this task."
    elif turn < len(commands) and commands[turn] == GIVE_UP:
        message["content"] = f"{GIVE_UP}: it is not to be found."
    elif turn < len(commands):
        arguments = json.dumps({"command": commands[turn]})
        function = {"name": "bash", "arguments": arguments}
        message |= {"content": None, "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": function}]}
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
    }
    read, written = _tokens(messages), _tokens(message)
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return {
        "id": f"chatcmpl-{turn}",
        "object": "chat.completion",
        "created": 0,
        "model": f"scripted-{kind}",
        "choices": [choice],
        "usage": usage,
    }


def _tokens(value: Any) -> int:
    """About as many as a tokenizer would find."""
    return len(json.dumps(value)) // 4


class PolicyServer(ThreadingHTTPServer):
    """Listens on 127.0.0.1; port 0 is a free one."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)

    def url(self, kind: str) -> str:
        """The base URL of one of the policies."""
        return f"http://127.0.0.1:{self.server_port}/{kind}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind, _, rest = self.path.removeprefix("/").partition("/")
        if kind == "broken":
            self._answer(500, {"error": {"message": "the policy is broken", "type": "server_error"}})
        elif f"/{rest}" != PATH_END or kind not in ("right", "wrong", "mixed"):
            self._answer(404, {"error": {"message": f"nothing is at {self.path}", "type": "not_found"}})
        else:
            self._answer(200, answer(kind, json.loads(body)))

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Answers for the terminal tasks, without a model.")
    parser.add_argument("--port", type=int, default=9000)
    with PolicyServer(parser.parse_args().port) as server:
        print(f"policies: {server.url('right')} (or wrong, mixed, broken)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
