"""Bodies of requests: fields, types and limits; unknown and unsupported fields are refused by name.

Fields are those of OpenAI's API, and those of vLLM's that the engine has (``top_k``, ``min_p``, ``ignore_eos``, ...).
Source: https://platform.openai.com/docs/api-reference
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationError

from interlace.core.errors import InterlaceError
from interlace.engine import SamplingParams
from interlace.serve.errors import ApiError, convert_engine_error, convert_validation_error, make_value_error
from interlace.serve.messages import Items, Message, RequestPart, Tool, ToolChoice, parse_tool_choice

_MAX_LOGPROBS = 20
#: Fields that are arguments of ``SamplingParams`` of the same name.
_SAMPLING_FIELDS = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "stop", "stop_token_ids"),
    *("ignore_eos", "include_stop_str_in_output", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("logit_bias", "skip_special_tokens"),
)
Prompt = str | Sequence[int]


def _parse_prompts(value: Any) -> list[Prompt]:
    """Return the prompts of a completion: a text, a list of texts, ids, or a list of lists of ids."""
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    if isinstance(value, str) or kinds == {int}:
        return [value]
    if kinds == {str} or (kinds == {list} and all(set(map(type, ids)) <= {int} for ids in value)):
        return [*value]
    raise make_value_error("give a text, a list of texts, a list of token ids, or a list of such lists")


def _parse_biases(value: Any) -> dict[int, Any] | None:
    """Return biases by token id; ``SamplingParams`` checks the biases themselves."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise make_value_error("give numbers by token id, such as {'50256': -100}")
    unknown = next((id for id in value if not (id.isascii() and id.isdigit() and len(id) < 10)), None)
    if unknown is not None:
        raise make_value_error(f"{unknown[:20]!r} is no token id")
    return {int(id): bias for id, bias in value.items()}


def _accept_only(*neutral: object) -> AfterValidator:
    """Return the validator of a field that is not supported, but may be sent with the value that it has when absent."""

    def check(value: object) -> object:
        if value is not None and value not in neutral:
            raise make_value_error("this value is not supported; leave the field out")
        return value

    return AfterValidator(check)


Stops = Annotated[Items[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class StreamOptions(RequestPart):
    """Options of a streamed answer: ``include_usage`` for one more chunk that counts tokens."""

    include_usage: bool = False


class JsonSchema(RequestPart):
    """Schema that an answer must follow."""

    name: str = ""
    description: str | None = None
    definition: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None  # schemas are always enforced


class ResponseFormat(RequestPart):
    """Form of an answer: ``text``, ``json_object`` or ``json_schema``."""

    type: Annotated[str, Field(pattern="^(text|json_object|json_schema)$")]
    json_schema: JsonSchema | None = None

    def find_schema(self) -> dict[str, Any] | None:
        """Return the schema, None for text.

        Raises:
            ApiError: the type and the schema do not go together.
        """
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ApiError(
                400, "give json_schema with type 'json_schema', and with no other", param="response_format.json_schema"
            )
        if self.json_schema is not None:
            return self.json_schema.definition
        return {"type": "object"} if self.type == "json_object" else None


class StructuredOutputs(RequestPart):
    """Constraint on the text of an answer, as vLLM has it: a JSON schema or a regular expression."""

    definition: dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None


class GenerationRequest(RequestPart):
    """Fields that both kinds of requests have; None for the default of the model or of the engine.

    ``SamplingParams`` checks the ranges of its own.
    """

    model: str
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Stops | None = None
    stop_token_ids: Items[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[int, Any] | None, PlainValidator(_parse_biases)] = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # names the end user, and changes nothing

    @property
    def count(self) -> int:
        """Number of answers to each prompt."""
        return self.n or 1

    @property
    def has_usage_chunk(self) -> bool:
        """True if the stream ends with a chunk that counts tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def build_params(self, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
        """Return how the engine samples.

        Args:
            defaults: values of fields that the request leaves out.
            more: arguments that are no fields of their own.

        Raises:
            ApiError: a value is out of range, or values contradict each other.
        """
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream to be true", param="stream_options", code="invalid_value")
        given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(self, name)) is not None}
        if (constraint := self.structured_outputs) is not None:
            if more.get("json_schema") is not None:
                raise ApiError(400, "the answer's form is given twice; leave one out", param="structured_outputs")
            more = {**more, "json_schema": constraint.definition, "regex": constraint.regex}
        try:
            return SamplingParams(**{**defaults, **given, **more})
        except InterlaceError as error:
            raise convert_engine_error(error) from None


class CompletionRequest(GenerationRequest):
    """Body of ``/v1/completions``."""

    prompt: Annotated[list[Prompt], PlainValidator(_parse_prompts)]
    logprobs: Annotated[int, Field(ge=0, le=_MAX_LOGPROBS)] | None = None
    echo: Annotated[Any, _accept_only(False)] = None
    suffix: Annotated[Any, _accept_only("")] = None
    best_of: Annotated[Any, _accept_only(1)] = None


class ChatRequest(GenerationRequest):
    """Body of ``/v1/chat/completions``."""

    messages: Annotated[Items[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=_MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Items[Tool] | None = None
    tool_choice: Annotated[ToolChoice | None, PlainValidator(parse_tool_choice)] = None
    parallel_tool_calls: Annotated[Any, _accept_only(True)] = None

    def build_chat_params(self, defaults: Mapping[str, Any], schema: Mapping[str, Any] | None) -> SamplingParams:
        """Return how the engine samples an answer, which follows a JSON schema if there is one.

        Raises:
            ApiError: as ``build_params``.
        """
        if self.max_completion_tokens is not None and self.max_tokens is not None:
            raise ApiError(400, "max_tokens is max_completion_tokens; leave one out", param="max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
        tokens = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.build_params(defaults, max_tokens=tokens, logprobs=logprobs, json_schema=schema)


_Request = TypeVar("_Request", bound=GenerationRequest)


def parse_request(kind: type[_Request], body: bytes) -> _Request:
    """Return the request in a body.

    Raises:
        ApiError: the body is no JSON, nests too deep, or is no such request.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise convert_validation_error(error) from None
