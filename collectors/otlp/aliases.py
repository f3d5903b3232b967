"""What the attributes of spans and logs are called in the field, and what each is taken for.

One table for all senders: current and older GenAI conventions of OpenTelemetry, OpenInference, OpenLLMetry, LiteLLM,
vLLM, SGLang. Of several names for one thing the first that is there counts. Whoever meets a sender that speaks
differently adds a name here, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # which request it is; an engine's own id is the id of the response that its client sees
        "request": (
            "gen_ai.request.id",  # vLLM, SGLang
            "gen_ai.response.id",
            "rid",  # SGLang
            "llm.response.id",
            "litellm.call_id",
            "hidden_params.litellm_call_id",
            "llm.request.id",
            "http.request.header.x-request-id",
        ),
        "model": (
            "gen_ai.request.model",
            "gen_ai.response.model",
            "llm.request.model",
            "llm.model_name",  # OpenInference
            "llm.response.model",
            "embedding.model_name",
        ),
        "operation": ("gen_ai.operation.name", "llm.request.type"),
        "span_kind": ("openinference.span.kind", "traceloop.span.kind"),
        "provider": ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.vendor"),
        # tokens
        "received_tokens": (  # counted by whoever took the prompt in, before an engine saw it
            "kvwitness.prompt_tokens",
            "gen_ai.request.input_tokens",
            "llm.request.prompt_tokens",
            "smg.prompt_tokens",
        ),
        "prompt_tokens": (  # what the answer says
            "gen_ai.usage.input_tokens",
            "gen_ai.usage.prompt_tokens",  # vLLM, SGLang, older conventions
            "llm.token_count.prompt",  # OpenInference
            "llm.usage.prompt_tokens",
        ),
        "cached_tokens": (
            "gen_ai.usage.cache_read.input_tokens",
            "gen_ai.usage.cache_read_input_tokens",
            "gen_ai.usage.cached_tokens",  # SGLang
            "gen_ai.usage.details.cached_tokens",
            "llm.token_count.prompt_details.cache_read",
            "llm.usage.cache_read_input_tokens",
        ),
        "completion_tokens": (
            "gen_ai.usage.output_tokens",
            "gen_ai.usage.completion_tokens",
            "llm.token_count.completion",
            "llm.usage.completion_tokens",
        ),
        "max_new_tokens": ("gen_ai.request.max_tokens", "llm.request.max_tokens", "llm.max_tokens"),
        # the end
        "finish_reason": (
            "gen_ai.response.finish_reasons",
            "gen_ai.response.finish_reason",
            "gen_ai.completion.0.finish_reason",  # OpenLLMetry
            "llm.response.finish_reason",
            "llm.finish_reason",
        ),
        "http_status": ("http.response.status_code", "http.status_code", "gen_ai.response.status_code"),
        "error_type": ("error.type", "gen_ai.error.type", "exception.type"),
        # what separates requests
        "salt": (
            "cache_salt",
            "gen_ai.request.cache_salt",
            "llm.request.cache_salt",
            "vllm.cache_salt",
            "sglang.cache_salt",
            "nvext.cache_salt",
        ),
        "adapter": ("gen_ai.request.adapter", "lora_name", "vllm.lora_name", "llm.request.lora_name"),
        "session": ("gen_ai.conversation.id", "session.id", "langfuse.session.id", "session_id"),
        "room": ("bootstrap_room",),  # SGLang: one number on both sides of a hand-over
        "traffic": ("kvwitness.traffic", "user_agent.synthetic.type"),
        # how long until the first token, in seconds
        "first_token_s": (
            "gen_ai.response.time_to_first_chunk",
            "gen_ai.latency.time_to_first_token",
            "gen_ai.server.time_to_first_token",
        ),
    }
)
"""What is meant -> the names it goes by, best first."""

MEANING: Mapping[str, tuple[str, int]] = MappingProxyType(
    {name: (what, rank) for what, names in ALIASES.items() for rank, name in enumerate(names)}
)
"""Name of an attribute -> what it means, and its rank among the names for that."""

INFERENCE = frozenset({"chat", "completion", "text_completion", "generate_content", "generate", "responses", "message"})
"""Operations in which a model reads a prompt. Agents, tools and chains wrap such calls and would count them twice."""
LLM_SPANS = frozenset({"llm"})
"""OpenInference kinds of span that are such a call."""
ENGINE_SCOPES = ("vllm", "sglang")
"""Instrumentation scopes and resource attributes that begin so belong to an engine."""
ENGINE_SPANS = frozenset({"llm_request"})
"""Names of spans that only engines make (vLLM)."""

CONTENT = (
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.prompt",
    "gen_ai.completion",
    "gen_ai.content",
    "gen_ai.tool",
    "llm.input_messages",
    "llm.output_messages",
    "llm.prompts",
    "llm.completions",
    "llm.prompt_template",
    "llm.tools",
    "llm.function_call",
    "llm.invocation_parameters",
    "input.value",
    "output.value",
    "input.mime_type",
    "traceloop.entity.input",
    "traceloop.entity.output",
    "langfuse.observation.input",
    "langfuse.observation.output",
    "retrieval.documents",
    "embedding.embeddings",
    "exception.message",
    "exception.stacktrace",
    "lk.input_text",
)
"""Attributes that begin so hold what users sent or models said. They are dropped at the door, and counted."""
MESSAGES_EVENTS = ("gen_ai.content", "gen_ai.user", "gen_ai.system", "gen_ai.assistant", "gen_ai.tool", "gen_ai.choice")
"""Events and logs whose names begin so consist of content; all of one is dropped, and counted."""
