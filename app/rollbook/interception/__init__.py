"""The endpoint in front of the policy: every model call of a rollout passes here, is decided about and recorded.

This package's root holds what a rollout needs to decide; `rollbook.interception.endpoint` has the endpoint itself.
"""

from rollbook.interception.messages import CallPolicy, MessageDict, Refused, Request, Response

__all__ = ["CallPolicy", "MessageDict", "Refused", "Request", "Response"]
