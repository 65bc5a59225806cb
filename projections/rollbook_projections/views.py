"""The SQL views for audit, by schema version.

A view's text never changes once released: a migration that changes views adds a new dictionary here. What
databases say differently stands in braces: `{iso:X}` is a microsecond time as ISO 8601 text, `{seconds:X}` a
difference of such times in seconds, `{real:X}` a number as text.
"""

from __future__ import annotations

import re

_SAID = {
    "sqlite": {
        "iso": "strftime('%Y-%m-%dT%H:%M:%fZ', ({0}) / 1000000.0, 'unixepoch')",
        "seconds": "({0}) / 1000000.0",
        "real": "CAST({0} AS TEXT)",
    },
    "postgresql": {
        "iso": (
            "to_char(to_timestamp(round(({0}) / 1000.0) / 1000.0) AT TIME ZONE 'UTC',"
            ' \'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"\')'
        ),
        "seconds": "CAST(({0}) / 1000000.0 AS DOUBLE PRECISION)",
        "real": "CASE WHEN {0} = trunc({0}) AND abs({0}) < 1e15 THEN CAST({0} AS TEXT) || '.0' ELSE CAST({0} AS TEXT) END",
    },
}


def view_sql(text: str, dialect: str) -> str:
    """A view's SELECT for one dialect (``sqlite`` or ``postgresql``)."""
    said = _SAID[dialect]
    return re.sub(r"\{(\w+):([^}]+)\}", lambda match: said[match[1]].format(match[2]), text)


VIEWS_1: dict[str, str] = {
    "rollout_timeline": """
        SELECT r.rollout_id, e.seq, e.position, {iso:e.recorded_at} AS at, e.type,
               coalesce(st.attempt, en.attempt, p.attempt, sc.attempt) AS attempt,
               coalesce(
                   st.scheduler, p.phase, l.kind, o.status,
                   en.outcome || coalesce(': ' || en.reason, ''),
                   sc.name || ' = ' || coalesce({real:sc.value}, 'null'),
                   c.requested_by || ' by ' || c.selector
               ) AS detail
        FROM events e
        JOIN rollouts r ON r.number = e.number
        LEFT JOIN lease_changes l ON l.number = e.number AND l.position = e.position
        LEFT JOIN attempt_starts st ON st.number = e.number AND st.position = e.position
        LEFT JOIN attempt_ends en ON en.number = e.number AND en.position = e.position
        LEFT JOIN phases p ON p.number = e.number AND p.position = e.position
        LEFT JOIN scores sc ON sc.number = e.number AND sc.position = e.position
        LEFT JOIN cancellations c ON c.number = e.number AND c.position = e.position
        LEFT JOIN outcomes o ON o.number = e.number AND o.position = e.position""",
    "lease_history": """
        SELECT r.rollout_id, e.position, {iso:e.recorded_at} AS at,
               CASE e.type WHEN 'rollout_admitted' THEN 'granted' WHEN 'lease_renewed' THEN 'renewed' ELSE l.kind END
                   AS kind,
               CASE WHEN l.position IS NULL THEN {iso:e.recorded_at + r.lease_timeout_us} ELSE {iso:l.expires_at} END
                   AS expires_at,
               l.reason,
               (SELECT st.scheduler FROM attempt_starts st
                 WHERE st.number = e.number AND st.position < e.position
                 ORDER BY st.position DESC LIMIT 1) AS last_scheduler
        FROM events e
        JOIN rollouts r ON r.number = e.number
        LEFT JOIN lease_changes l ON l.number = e.number AND l.position = e.position
        WHERE e.type IN ('rollout_admitted', 'lease_renewed', 'lease_extended', 'lease_expired')""",
    "attempts": """
        SELECT r.rollout_id, r.queue, st.attempt, st.scheduler, {iso:st.at} AS started_at, {iso:en.at} AS ended_at,
               en.outcome, en.reason, {seconds:en.at - st.at} AS seconds
        FROM attempt_starts st
        JOIN rollouts r ON r.number = st.number
        LEFT JOIN attempt_ends en ON en.number = st.number AND en.attempt = st.attempt""",
    "cancellation_log": """
        SELECT r.rollout_id, c.position, {iso:c.at} AS at, c.requested_by, c.selector, r.status AS status_now,
               {seconds:r.finished_at - c.at} AS seconds_to_end
        FROM cancellations c
        JOIN rollouts r ON r.number = c.number""",
    "phase_durations": """
        SELECT r.rollout_id, r.queue, s.attempt, s.stage, {iso:s.started_at} AS started_at,
               {iso:s.ended_at} AS ended_at, {seconds:s.ended_at - s.started_at} AS seconds
        FROM stage_spans s
        JOIN rollouts r ON r.number = s.number""",
    "reward_outcomes": """
        SELECT r.rollout_id, r.queue, a.label, {iso:r.admitted_at} AS admitted_at, {iso:r.finished_at} AS finished_at,
               r.status, r.attempt AS attempts, o.err_category, o.err_message,
               (SELECT sum(sc.value * sc.weight) FROM scores sc
                 WHERE sc.number = r.number AND sc.kind = 'reward' AND sc.attempt = r.attempt) AS reward
        FROM rollouts r
        JOIN admissions a ON a.number = r.number
        LEFT JOIN outcomes o ON o.number = r.number
        WHERE r.finished_at IS NOT NULL""",
}
