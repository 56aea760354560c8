"""Answers to questions about the text and the tokens of prompts. Runs on the intake thread."""

from __future__ import annotations

from ..protocol import Detokenize, Detokenized, TokenAnswer, TokenCommand, Tokenize, Tokenized, TokensRefused
from .prompting import Prompt, Prompter, PromptError, check_tokens


def answer(prompter: Prompter, question: TokenCommand) -> TokenAnswer:
    """What a tokenizer and a chat template have to say; a question that they can't answer is refused."""
    try:
        return _tokenized(prompter, question) if isinstance(question, Tokenize) else _text(prompter, question)
    except PromptError as error:
        return TokensRefused(question.request_id, error.status, error.code, error.message, error.param)


def _tokenized(prompter: Prompter, question: Tokenize) -> Tokenized:
    prompt, text = _prompt(prompter, question)
    spelling = prompter.tokenizer.spelling
    return Tokenized(
        request_id=question.request_id,
        tokens=prompt.tokens,
        pieces=tuple(spelling(token).decode("utf-8", "replace") for token in prompt.tokens),
        text=text,
        stable_tokens=prompt.stable,
        turn_start=prompt.turn_start,
        canonical=prompt.canonical,
    )


def _prompt(prompter: Prompter, question: Tokenize) -> tuple[Prompt, str | None]:
    request = question.request
    if request.messages:
        return prompter.prompt(request), prompter.text(request)
    if isinstance(request.prompt, str):
        return Prompt(tuple(prompter.tokenizer.encode(request.prompt, question.add_special))), None
    return prompter.prompt(request), None


def _text(prompter: Prompter, question: Detokenize) -> Detokenized:
    tokenizer = prompter.tokenizer
    check_tokens(question.tokens, tokenizer.vocab_size, "tokens")
    spell = tokenizer.token_bytes if question.skip_special else tokenizer.spelling
    text = b"".join(map(spell, question.tokens)).decode("utf-8", "replace")
    return Detokenized(question.request_id, text)
