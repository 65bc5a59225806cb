"""The SQL views for audit, by schema version.

A view's text never changes once released: a migration that changes views adds a new dictionary here. What
databases say differently stands in braces, and both give the same answer: `{iso:X}` is a microsecond time as ISO 8601
text, `{seconds:X}` a difference of such times in seconds, `{age:X}` the seconds from such a time until now, `{real:X}`
a number as text, `{summed:X}` the sum of an alias's values by their weights, `{weighted:X}` that sum where no weight is
far from 1, `{head:X}` what stands before the first
slash, `{text:X}` a text that is compared bytewise, `{index:X}` an index to use, `{json:X}` a text as JSON,
`{object:X}` the fields of an ordered selection as a JSON object.
"""

from __future__ import annotations

import re

from .task_views import VIEWS_3

# SQLite counts a time's milliseconds from the start of the Julian calendar in floating point, and rounds there.
# PostgreSQL is told to do the same: else one time in a hundred would differ in its last digit.
_JULIAN_US = "({0}) BETWEEN -210866760000000000 AND 253402300799998999"
_JULIAN_MS = "floor(CAST(({0}) AS DOUBLE PRECISION) / 1000000.0 * 1000.0 + 210866760000000.0 + 0.5)"
_LARGEST = "CAST(1.7976931348623157e308 AS DOUBLE PRECISION)"
_MILLIONTHS = "sum({0}.value / 1048576.0 * {0}.weight) FILTER (WHERE abs({0}.value) > 1e-200)"

# The same for any weight. A product that no number holds is infinite or nothing in SQLite, and an error in PostgreSQL.
_PRODUCT = (
    "CASE WHEN {0}.weight = 1 THEN {0}.value"
    " WHEN {0}.weight = 0 OR {0}.value = 0 THEN CAST(0 AS DOUBLE PRECISION)"
    " WHEN abs({0}.weight) > 1 AND abs({0}.value) > CAST(1.79e308 AS DOUBLE PRECISION) / abs({0}.weight)"
    " THEN sign({0}.value) * sign({0}.weight) * CAST('Infinity' AS DOUBLE PRECISION)"
    " WHEN abs({0}.weight) < 1 AND abs({0}.value) < CAST(5e-324 AS DOUBLE PRECISION) / abs({0}.weight)"
    " THEN CAST(0 AS DOUBLE PRECISION)"
    " ELSE {0}.value * {0}.weight END"
)
_PARTS = f"sum({_PRODUCT} / 1048576.0) FILTER (WHERE abs({_PRODUCT}) > 1e-200)"

_SAID = {
    "sqlite": {
        "iso": "strftime('%Y-%m-%dT%H:%M:%fZ', ({0}) / 1000000.0, 'unixepoch')",
        "seconds": "({0}) / 1000000.0",
        "age": "(julianday('now') - 2440587.5) * 86400.0 - ({0}) / 1000000.0",
        "real": "CAST({0} AS TEXT)",
        "weighted": "sum({0}.value * {0}.weight)",
        "head": "CASE WHEN instr({0}, '/') > 0 THEN substr({0}, 1, instr({0}, '/') - 1) ELSE {0} END",
        "text": "{0}",
        # Its planner would read all rollouts, however few are open.
        "index": "INDEXED BY {0}",
        "json": "json_quote({0})",
        "summed": "sum({0}.value * {0}.weight)",
        "object": "'{{' || group_concat({0}, ', ') || '}}'",
    },
    "postgresql": {
        "iso": (
            f"CASE WHEN {_JULIAN_US} THEN"
            f" to_char(to_timestamp(({_JULIAN_MS} - 210866760000000.0) / 1000.0) AT TIME ZONE 'UTC',"
            """ 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') END COLLATE "C\""""
        ),
        "seconds": "CAST(({0}) / 1000000.0 AS DOUBLE PRECISION)",
        "age": "CAST(extract(epoch FROM clock_timestamp()) - ({0}) / 1000000.0 AS DOUBLE PRECISION)",
        # Fifteen digits and always a point; an exponent where there would be many zeros.
        "real": (
            "CASE WHEN {0} = 0 THEN '0.0'"
            " WHEN abs({0}) < 0.0001 OR abs({0}) >= 1e15 THEN"
            " replace(regexp_replace(trim(to_char({0}, '9.99999999999999EEEE')), '0+e', 'e'), '.e', '.0e')"
            " WHEN CAST({0} AS NUMERIC) = trunc(CAST({0} AS NUMERIC)) THEN CAST(CAST({0} AS NUMERIC) AS TEXT) || '.0'"
            " ELSE CAST(trim_scale(CAST({0} AS NUMERIC)) AS TEXT) END"
        ),
        # A sum beyond all numbers is infinite, not an error: large ones are added up as their millionth parts.
        "weighted": (
            "CASE WHEN max(abs({0}.value)) < 1e300"
            " THEN sum({0}.value * {0}.weight) FILTER (WHERE abs({0}.value) < 1e300)"
            f" WHEN abs({_MILLIONTHS}) <= {_LARGEST} / 1048576.0 THEN {_MILLIONTHS} * 1048576.0"
            f" WHEN {_MILLIONTHS} > 0 THEN CAST('Infinity' AS DOUBLE PRECISION)"
            f" WHEN {_MILLIONTHS} < 0 THEN CAST('-Infinity' AS DOUBLE PRECISION) END"
        ),
        "head": "split_part({0}, '/', 1)",
        "text": '{0} COLLATE "C"',
        "index": "",
        "json": "CAST(to_json({0}) AS TEXT)",
        "summed": (
            f"CASE WHEN max(abs({_PRODUCT})) < 1e300 THEN sum({_PRODUCT}) FILTER (WHERE abs({_PRODUCT}) < 1e300)"
            f" WHEN abs({_PARTS}) <= {_LARGEST} / 1048576.0 THEN {_PARTS} * 1048576.0"
            f" WHEN {_PARTS} = CAST('NaN' AS DOUBLE PRECISION) THEN NULL"
            f" WHEN {_PARTS} > 0 THEN CAST('Infinity' AS DOUBLE PRECISION)"
            f" WHEN {_PARTS} < 0 THEN CAST('-Infinity' AS DOUBLE PRECISION) END"
        ),
        "object": "('{{' || string_agg({0}, ', ') || '}}') COLLATE \"C\"",
    },
}


def view_sql(text: str, dialect: str) -> str:
    """A view's SELECT for one dialect (``sqlite`` or ``postgresql``)."""
    said = _SAID[dialect]
    # From the inside out: one may stand within another.
    while (found := re.sub(r"\{(\w+):([^{}]+)\}", lambda match: said[match[1]].format(match[2]), text)) != text:
        text = found
    return text


VIEWS_1: dict[str, str] = {
    "rollout_timeline": """
        SELECT r.rollout_id, e.seq, e.position, {iso:e.recorded_at} AS at, {text:e.type} AS type,
               coalesce(st.attempt, en.attempt, p.attempt, sc.attempt) AS attempt,
               {text:coalesce(
                   st.scheduler, p.phase, l.kind, o.status,
                   en.outcome || coalesce(': ' || en.reason, ''),
                   sc.name || ' = ' || coalesce({real:sc.value}, 'null'),
                   c.requested_by || ' by ' || c.selector
               )} AS detail
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
               {text:CASE e.type WHEN 'rollout_admitted' THEN 'granted' WHEN 'lease_renewed' THEN 'renewed'
                                 ELSE l.kind END} AS kind,
               CASE WHEN l.position IS NULL THEN {iso:e.recorded_at + r.lease_timeout_us} ELSE {iso:l.expires_at} END
                   AS expires_at,
               {text:l.reason} AS reason,
               (SELECT {text:st.scheduler} FROM attempt_starts st
                 WHERE st.number = e.number AND st.position < e.position
                 ORDER BY st.position DESC LIMIT 1) AS last_scheduler
        FROM events e
        JOIN rollouts r ON r.number = e.number
        LEFT JOIN lease_changes l ON l.number = e.number AND l.position = e.position
        WHERE e.type IN ('rollout_admitted', 'lease_renewed', 'lease_extended', 'lease_expired')""",
    "attempts": """
        SELECT r.rollout_id, r.queue, st.attempt, {text:st.scheduler} AS scheduler, {iso:st.at} AS started_at,
               {iso:en.at} AS ended_at, {text:en.outcome} AS outcome, {text:en.reason} AS reason,
               {seconds:en.at - st.at} AS seconds
        FROM attempt_starts st
        JOIN rollouts r ON r.number = st.number
        LEFT JOIN attempt_ends en ON en.number = st.number AND en.attempt = st.attempt""",
    "cancellation_log": """
        SELECT r.rollout_id, c.position, {iso:c.at} AS at, {text:c.requested_by} AS requested_by,
               {text:c.selector} AS selector, {text:r.status} AS status_now,
               {seconds:r.finished_at - c.at} AS seconds_to_end
        FROM cancellations c
        JOIN rollouts r ON r.number = c.number""",
    "phase_durations": """
        SELECT r.rollout_id, r.queue, s.attempt, {text:s.stage} AS stage, {iso:s.started_at} AS started_at,
               {iso:s.ended_at} AS ended_at, {seconds:s.ended_at - s.started_at} AS seconds
        FROM stage_spans s
        JOIN rollouts r ON r.number = s.number""",
    "reward_outcomes": """
        SELECT r.rollout_id, r.queue, {text:a.label} AS label, {iso:r.admitted_at} AS admitted_at,
               {iso:r.finished_at} AS finished_at, {text:r.status} AS status, r.attempt AS attempts,
               {text:o.err_category} AS err_category, {text:o.err_message} AS err_message,
               (SELECT {weighted:sc} FROM scores sc
                 WHERE sc.number = r.number AND sc.kind = 'reward' AND sc.attempt = r.attempt) AS reward
        FROM rollouts r
        JOIN admissions a ON a.number = r.number
        LEFT JOIN outcomes o ON o.number = r.number
        WHERE r.finished_at IS NOT NULL""",
}

# What the questions of docs/sql.md need beyond the first six: days and hours, labels, who worked on it at that moment,
# and what is open now. None of them reads the events, so they show archived rollouts too.
VIEWS_2: dict[str, str] = {
    "rollout_summary": """
        SELECT r.rollout_id, r.queue, {text:a.label} AS label, {text:{head:a.label}} AS label_prefix,
               {text:r.status} AS status, {iso:r.admitted_at} AS admitted_at,
               substr({iso:r.admitted_at}, 1, 10) AS admitted_day,
               substr({iso:r.admitted_at}, 1, 13) || ':00Z' AS admitted_hour,
               {iso:r.finished_at} AS finished_at, substr({iso:r.finished_at}, 1, 10) AS finished_day,
               substr({iso:r.finished_at}, 1, 13) || ':00Z' AS finished_hour,
               {seconds:r.finished_at - r.admitted_at} AS seconds, r.attempt AS attempts,
               (SELECT count(*) FROM attempt_ends en WHERE en.number = r.number AND en.outcome = 'lost')
                   AS lost_attempts,
               (SELECT {weighted:sc} FROM scores sc
                 WHERE sc.number = r.number AND sc.kind = 'reward' AND sc.attempt = r.attempt) AS reward,
               {text:o.err_category} AS err_category, {text:o.err_message} AS err_message,
               r.admitted_at AS admitted_us, r.finished_at AS finished_us
        FROM rollouts r
        JOIN admissions a ON a.number = r.number
        LEFT JOIN outcomes o ON o.number = r.number""",
    "attempt_summary": """
        SELECT r.rollout_id, r.queue, {text:a.label} AS label, {text:{head:a.label}} AS label_prefix, st.attempt,
               {text:st.scheduler} AS scheduler,
               {seconds:st.at - coalesce((SELECT max(en.at) FROM attempt_ends en
                                           WHERE en.number = st.number AND en.position < st.position), r.admitted_at)}
                   AS waited_seconds,
               {iso:st.at} AS started_at, substr({iso:st.at}, 1, 10) AS started_day,
               substr({iso:st.at}, 1, 13) || ':00Z' AS started_hour, {iso:en.at} AS ended_at,
               {text:en.outcome} AS outcome, {text:en.reason} AS reason, {seconds:en.at - st.at} AS seconds,
               st.at AS started_us, en.at AS ended_us
        FROM attempt_starts st
        JOIN rollouts r ON r.number = st.number
        JOIN admissions a ON a.number = st.number
        LEFT JOIN attempt_ends en ON en.number = st.number AND en.attempt = st.attempt""",
    "stage_summary": """
        SELECT r.rollout_id, r.queue, {text:a.label} AS label, {text:{head:a.label}} AS label_prefix, s.attempt,
               {text:s.stage} AS stage, {iso:s.started_at} AS started_at,
               substr({iso:s.started_at}, 1, 10) AS started_day,
               substr({iso:s.started_at}, 1, 13) || ':00Z' AS started_hour,
               {seconds:s.ended_at - s.started_at} AS seconds, s.started_at AS started_us, s.ended_at AS ended_us
        FROM stage_spans s
        JOIN rollouts r ON r.number = s.number
        JOIN admissions a ON a.number = s.number""",
    "lease_losses": """
        SELECT r.rollout_id, r.queue, {text:a.label} AS label, {iso:l.at} AS at,
               substr({iso:l.at}, 1, 10) AS day, substr({iso:l.at}, 1, 13) || ':00Z' AS hour,
               {iso:l.expires_at} AS expired_at, st.attempt, {text:st.scheduler} AS scheduler, l.at AS at_us
        FROM lease_changes l
        JOIN rollouts r ON r.number = l.number
        JOIN admissions a ON a.number = l.number
        LEFT JOIN attempt_starts st ON st.number = l.number AND st.position < l.position
             AND NOT EXISTS (SELECT 1 FROM attempt_ends en WHERE en.number = st.number AND en.attempt = st.attempt
                                                             AND en.position < l.position)
        WHERE l.kind = 'expired'""",
    "cancel_summary": """
        SELECT r.rollout_id, r.queue, {text:a.label} AS label, {iso:c.at} AS at,
               substr({iso:c.at}, 1, 10) AS day, substr({iso:c.at}, 1, 13) || ':00Z' AS hour,
               {text:c.requested_by} AS requested_by, {text:c.selector} AS selector, st.attempt,
               {text:st.scheduler} AS scheduler, {text:r.status} AS status_now,
               {seconds:r.finished_at - c.at} AS seconds_to_end, c.at AS at_us
        FROM cancellations c
        JOIN rollouts r ON r.number = c.number
        JOIN admissions a ON a.number = c.number
        LEFT JOIN attempt_starts st ON st.number = c.number AND st.position < c.position
             AND NOT EXISTS (SELECT 1 FROM attempt_ends en WHERE en.number = st.number AND en.attempt = st.attempt
                                                             AND en.position < c.position)""",
    "open_rollouts": """
        SELECT w.rollout_id, w.queue, {text:w.label} AS label, {text:w.status} AS status, w.attempt,
               {text:w.scheduler} AS scheduler, {iso:w.since_us} AS since, {age:w.since_us} AS seconds,
               {iso:w.admitted_at} AS admitted_at, {iso:w.lease_expires_at} AS lease_expires_at,
               {iso:w.cancel_requested_at} AS cancel_requested_at, w.since_us
        FROM (SELECT r.*, a.label,
                     CASE WHEN r.status = 'queued' AND r.scheduler IS NOT NULL
                          THEN (SELECT max(st.at) FROM attempt_starts st WHERE st.number = r.number)
                          ELSE r.changed_at END AS since_us
              FROM (SELECT number, rollout_id, queue, status, attempt, scheduler, admitted_at, changed_at,
                           lease_expires_at, cancel_requested_at
                    FROM rollouts {index:rollouts_live} WHERE finished_at IS NULL
                    UNION ALL
                    SELECT number, rollout_id, queue, status, attempt, scheduler, admitted_at, changed_at,
                           lease_expires_at, cancel_requested_at
                    FROM rollouts {index:rollouts_owned} WHERE scheduler IS NOT NULL AND finished_at IS NOT NULL) r
              JOIN admissions a ON a.number = r.number) w""",
}

VIEWS: dict[str, str] = {**VIEWS_1, **VIEWS_2, **VIEWS_3}
"""All views of the newest schema; a later text of a name takes the place of an earlier one."""
