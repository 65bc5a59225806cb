"""The views of model calls, scores and reports, and what they changed in earlier ones; see `views` for how they read.

A rollout that was over may be scored once more. Where a view tells of its reward, the last scoring is meant.
"""

from __future__ import annotations

_LAST_SCORING = "coalesce((SELECT max(v.scoring) FROM scorings v WHERE v.number = r.number), 0)"
_COUNTS = f"sc.number = r.number AND sc.attempt = r.attempt AND sc.scoring = {_LAST_SCORING}"
# What a rollout that failed was given until then is no reward of it: only a later scoring can be.
_REWARD = (
    f"(SELECT {{summed:sc}} FROM scores sc WHERE {_COUNTS} AND sc.kind = 'reward'"
    " AND (r.status = 'success' OR sc.scoring > 0))"
)
_POLICY_CALLS = "FROM model_calls c WHERE c.number = r.number AND c.attempt = r.attempt AND c.purpose = 'policy'"


def _stage(name: str) -> str:
    return (
        "(SELECT {seconds:sum(CAST(s.ended_at AS DOUBLE PRECISION) - s.started_at)} FROM stage_spans s"
        f" WHERE s.number = r.number AND s.attempt = r.attempt AND s.stage = '{name}') AS {name}_seconds"
    )


def _named(kind: str) -> str:
    """The names and values of the scores that count, as the text of a JSON object in the order of their recording."""
    return (
        "(SELECT {object:n.field} FROM"
        " (SELECT {json:sc.name} || ': ' || coalesce({real:sc.value}, 'null') AS field"
        f" FROM scores sc WHERE {_COUNTS} AND sc.kind = '{kind}' ORDER BY sc.position) n)"
    )


_STAGES = ("queue", "boot", "setup", "agent", "finalize", "scoring", "grading")

VIEWS_3: dict[str, str] = {
    "rollout_timeline": """
        SELECT r.rollout_id, e.seq, e.position, {iso:e.recorded_at} AS at, {text:e.type} AS type,
               coalesce(st.attempt, en.attempt, p.attempt, sc.attempt, mc.attempt, sp.attempt, rw.attempt, tr.attempt)
                   AS attempt,
               {text:coalesce(
                   st.scheduler, p.phase, l.kind, o.status,
                   en.outcome || coalesce(': ' || en.reason, ''),
                   sc.name || ' = ' || coalesce({real:sc.value}, 'null'),
                   c.requested_by || ' by ' || c.selector,
                   mc.purpose || ' call ' || mc.call || ': ' || coalesce(mc.error_kind, mc.finish_reason, 'answered'),
                   sp.condition,
                   rw.hook || ' rewrote the ' || rw.side,
                   tr.size_bytes || ' bytes',
                   'scoring ' || v.scoring || ' by ' || v.asked_by || ': ' || coalesce({real:v.reward}, 'null')
               )} AS detail
        FROM events e
        JOIN rollouts r ON r.number = e.number
        LEFT JOIN lease_changes l ON l.number = e.number AND l.position = e.position
        LEFT JOIN attempt_starts st ON st.number = e.number AND st.position = e.position
        LEFT JOIN attempt_ends en ON en.number = e.number AND en.position = e.position
        LEFT JOIN phases p ON p.number = e.number AND p.position = e.position
        LEFT JOIN scores sc ON sc.number = e.number AND sc.position = e.position
        LEFT JOIN cancellations c ON c.number = e.number AND c.position = e.position
        LEFT JOIN outcomes o ON o.number = e.number AND o.position = e.position
        LEFT JOIN model_calls mc ON mc.number = e.number AND mc.position = e.position
        LEFT JOIN stops sp ON sp.number = e.number AND sp.position = e.position
        LEFT JOIN rewrites rw ON rw.number = e.number AND rw.position = e.position
        LEFT JOIN traces tr ON tr.number = e.number AND tr.position = e.position
        LEFT JOIN scorings v ON v.number = e.number AND v.position = e.position""",
    "reward_outcomes": f"""
        SELECT r.rollout_id, r.queue, {{text:a.label}} AS label, {{iso:r.admitted_at}} AS admitted_at,
               {{iso:r.finished_at}} AS finished_at, {{text:r.status}} AS status, r.attempt AS attempts,
               {{text:o.err_category}} AS err_category, {{text:o.err_message}} AS err_message,
               {_REWARD} AS reward
        FROM rollouts r
        JOIN admissions a ON a.number = r.number
        LEFT JOIN outcomes o ON o.number = r.number
        WHERE r.finished_at IS NOT NULL""",
    "rollout_summary": f"""
        SELECT r.rollout_id, r.queue, {{text:a.label}} AS label, {{text:{{head:a.label}}}} AS label_prefix,
               {{text:r.status}} AS status, {{iso:r.admitted_at}} AS admitted_at,
               substr({{iso:r.admitted_at}}, 1, 10) AS admitted_day,
               substr({{iso:r.admitted_at}}, 1, 13) || ':00Z' AS admitted_hour,
               {{iso:r.finished_at}} AS finished_at, substr({{iso:r.finished_at}}, 1, 10) AS finished_day,
               substr({{iso:r.finished_at}}, 1, 13) || ':00Z' AS finished_hour,
               {{seconds:r.finished_at - r.admitted_at}} AS seconds, r.attempt AS attempts,
               (SELECT count(*) FROM attempt_ends en WHERE en.number = r.number AND en.outcome = 'lost')
                   AS lost_attempts,
               {_REWARD} AS reward,
               {{text:o.err_category}} AS err_category, {{text:o.err_message}} AS err_message,
               r.admitted_at AS admitted_us, r.finished_at AS finished_us
        FROM rollouts r
        JOIN admissions a ON a.number = r.number
        LEFT JOIN outcomes o ON o.number = r.number""",
    "rollout_reports": f"""
        SELECT r.rollout_id, r.queue, {{text:a.label}} AS label, {{text:{{head:a.label}}}} AS label_prefix,
               {{text:r.status}} AS status, r.attempt AS attempts,
               {{iso:r.finished_at}} AS finished_at, substr({{iso:r.finished_at}}, 1, 10) AS finished_day,
               {", ".join(_stage(name) for name in _STAGES)},
               (SELECT count(*) {_POLICY_CALLS}) AS model_calls,
               (SELECT count(*) {_POLICY_CALLS} AND c.error_kind IS NOT NULL) AS failed_calls,
               (SELECT CAST(sum(c.input_tokens) AS BIGINT) {_POLICY_CALLS}) AS input_tokens,
               (SELECT CAST(sum(c.output_tokens) AS BIGINT) {_POLICY_CALLS}) AS output_tokens,
               {_REWARD} AS reward, {_named("reward")} AS rewards, {_named("metric")} AS metrics,
               {_LAST_SCORING} AS scoring,
               (SELECT {{text:sp.condition}} FROM stops sp WHERE sp.number = r.number AND sp.attempt = r.attempt
                 ORDER BY sp.position DESC LIMIT 1) AS stop_condition,
               {{text:o.err_category}} AS err_category, {{text:o.err_message}} AS err_message,
               (SELECT max(tr.size_bytes) FROM traces tr WHERE tr.number = r.number AND tr.attempt = r.attempt)
                   AS trace_bytes,
               r.finished_at AS finished_us
        FROM rollouts r
        JOIN admissions a ON a.number = r.number
        LEFT JOIN outcomes o ON o.number = r.number""",
    "score_summary": f"""
        SELECT r.rollout_id, r.queue, {{text:a.label}} AS label, {{text:{{head:a.label}}}} AS label_prefix,
               sc.attempt, sc.scoring, CASE WHEN {_COUNTS} THEN 1 ELSE 0 END AS counts,
               {{text:sc.kind}} AS kind, {{text:sc.name}} AS name, sc.value, sc.weight,
               {{iso:v.at}} AS rescored_at, {{text:v.asked_by}} AS rescored_by, {{text:v.task}} AS rescored_with,
               sc.position
        FROM scores sc
        JOIN rollouts r ON r.number = sc.number
        JOIN admissions a ON a.number = sc.number
        LEFT JOIN scorings v ON v.number = sc.number AND v.scoring = sc.scoring""",
    "call_summary": """
        SELECT r.rollout_id, r.queue, {text:a.label} AS label, {text:{head:a.label}} AS label_prefix, c.attempt, c.call,
               {text:c.purpose} AS purpose, {text:c.model} AS model, {iso:c.started_at} AS started_at,
               substr({iso:c.started_at}, 1, 10) AS started_day,
               substr({iso:c.started_at}, 1, 13) || ':00Z' AS started_hour,
               {seconds:c.ended_at - c.started_at} AS seconds,
               {seconds:c.first_chunk_at - c.started_at} AS first_chunk_seconds, c.streamed,
               c.input_tokens, c.output_tokens, c.cached_input_tokens, {text:c.finish_reason} AS finish_reason,
               {text:c.error_kind} AS error_kind, {text:c.error} AS error, c.position, c.started_at AS started_us
        FROM model_calls c
        JOIN rollouts r ON r.number = c.number
        JOIN admissions a ON a.number = c.number""",
}
