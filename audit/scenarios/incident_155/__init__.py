"""Thirteen days of a prefill/decode deployment whose advertised context exceeds its prefill pool.

The deployment: one prefill engine `pf-1` (pool 681,280 tokens, enforced input limit 681,274), one decode
engine `dec-1` (pool 1,572,864 tokens), advertised context 1,048,576, pages of 64 tokens.

The fault: prefill refuses a prompt between the two limits, and hands a one-token placeholder off for it all
the same. Decode has reserved pages for the true length, is told that one token arrived, reads the full length
and answers 200. Around it runs ordinary traffic of many tenants in bursts: allowed sharing of common
prefixes, client aborts (queued, in transfer, in decode), preemptions, health probes, near-limit prompts that
are served completely, and over-long prompts that get their 400.

The ground truth is not guessed: while it simulates, the generator follows whose content every decode page
holds, and writes down what each faulty read met. It shares no code with the audit, so that the two can
disagree.

The simulation knows no clock, no floating point and only its own random numbers: a seed gives the same bytes
everywhere.
"""

from kvwitness.audit.scenarios.incident_155.simulation import generate
from kvwitness.audit.scenarios.incident_155.truth import Incident, Truth

__all__ = ["Incident", "Truth", "generate"]
