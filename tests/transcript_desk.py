"""A prompter with a memory that tests put replies into."""

from __future__ import annotations

from agentserve.engine.prompts.prompting import Prompt, Prompter
from agentserve.engine.prompts.templates import ChatTemplate
from agentserve.engine.protocol import GenerateRequest, Message, SamplingParams, ToolCall
from agentserve.engine.text.tokenise import Tokenizer
from transcript_models import CHATML, TemplateKind, letters, merging_tokenizer, template_of

SYSTEM, QUESTION, NEXT = Message("system", "Be brief."), Message("user", "why?"), Message("user", "and then?")
REPLY = "the quick brown fox jumps over the other dog"
TOOLS = '[{"type": "function", "function": {"name": "read"}}]'
NO_THINKING = '{"enable_thinking": false}'
CALL_TEXT = (
    '\n<tool_call>\n{"name": "read", "arguments": {"path": "the fox", "deep": [1, null]}}\n</tool_call>'
)
EMPTY_BLOCK = "<think>\n\n</think>\n\n"


class Desk:
    """A prompter of one template, and replies that are put into its memory as if they had been generated."""

    def __init__(
        self,
        kind: TemplateKind = CHATML,
        tokenizer: Tokenizer | None = None,
        template: ChatTemplate | None = None,
    ) -> None:
        self.tokenizer = tokenizer or merging_tokenizer(kind)
        self.prompter = Prompter(self.tokenizer, template or template_of(kind), SamplingParams(), 4096)

    def prompt(self, *messages: Message, **fields: object) -> Prompt:
        return self.prompter.prompt(GenerateRequest("r", messages, **fields))  # type: ignore[arg-type]

    def reply(
        self,
        text: str,
        *messages: Message,
        ends: bool = True,
        stop_string: str | None = None,
        tokens: tuple[int, ...] | None = None,
        **fields: object,
    ) -> tuple[int, ...]:
        """Lets the model answer letter by letter; returns all tokens of prompt and reply."""
        prompt = self.prompt(*messages, **fields)
        own = letters(self.tokenizer, text) if tokens is None else tokens
        assert prompt.origin is not None
        prompt.origin.remember((*own, min(self.tokenizer.eos_ids)) if ends else own, stop_string)
        return (*prompt.tokens, *own)

    def spelled(self, tokens: tuple[int, ...]) -> str:
        return b"".join(map(self.tokenizer.spelling, tokens)).decode()

    def rendered(self, *messages: Message, **fields: object) -> str:
        """The same prompt by a prompter that remembers nothing."""
        fresh = Prompter(self.tokenizer, self.prompter.template, SamplingParams(), 4096)
        return self.spelled(fresh.prompt(GenerateRequest("r", messages, **fields)).tokens)  # type: ignore[arg-type]


def assistant(content: str | None, *calls: ToolCall) -> Message:
    return Message("assistant", content, calls)
