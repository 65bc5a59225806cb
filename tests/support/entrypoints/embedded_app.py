"""`create_rollout_server` over the chosen workflow: `python embedded_app.py PORT DATABASE_URL OPTIONS_AS_JSON`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import uvicorn

from rollbook import create_rollout_server
from rollbook.backends.entrypoint import load_entrypoint

if __name__ == "__main__":
    backend = load_entrypoint(str(Path(__file__).with_name("chosen.py")))
    app = create_rollout_server(backend=backend, database_url=sys.argv[2], **json.loads(sys.argv[3]))
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
