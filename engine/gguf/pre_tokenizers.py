"""How text is cut into words before byte-pair merging, by the name that a GGUF file gives (`tokenizer.ggml.pre`).

The names and what they mean are llama.cpp's (`src/llama-vocab.cpp`), the expressions those of the models' own
`tokenizer.json` files where llama.cpp had to rewrite them. A name that is not here is refused: a wrong cut
gives wrong tokens without any error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..model_errors import unsupported


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Expressions (Oniguruma) applied one after the other; each match and each rest becomes a word.

    `ignore_merges`: a word that is a token is taken whole. `add_bos` is the default when the file says nothing.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CJK = "[一-龥ࠀ-一가-퟿]+"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"


def _cased_words(ending: str) -> str:
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{ending}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{ending}"
    )


_LLAMA3 = (rf"{_CONTRACTION}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}",)
_QWEN2 = (rf"{_CONTRACTION}|{_WORDS}|\p{{N}}|{_SIGNS}|{_SPACES}",)
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
)
_TEKKEN = (rf"{_cased_words('')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",)
_GPT4O = (rf"{_cased_words(_CONTRACTION + '?')}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",)
_SINGLE_DIGITS = (r"\p{N}", _GPT2)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)

_KINDS: tuple[tuple[PreTokenizer, str], ...] = (
    (PreTokenizer(_DEFAULT), "default"),
    (
        PreTokenizer((_GPT2,)),
        "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 olmo trillion granite-docling jais mpt",
    ),
    (PreTokenizer(_SINGLE_DIGITS), "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    (
        PreTokenizer(_LLAMA3, ignore_merges=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    (PreTokenizer(_LLAMA3, ignore_merges=True), "glm4 glm5"),
    (PreTokenizer(_LLAMA3), "dbrx smaug-bpe chatglm-bpe"),
    (
        PreTokenizer(_QWEN2),
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    ),
    (PreTokenizer(_QWEN35), "qwen35"),
    (PreTokenizer(_TEKKEN, ignore_merges=True, add_bos=True), "tekken"),
    (PreTokenizer(_GPT4O), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (PreTokenizer(_DEEPSEEK_LLM), "deepseek-llm"),
    (PreTokenizer(_DEEPSEEK_CODER), "deepseek-coder"),
    (PreTokenizer(_DEEPSEEK_V3), "deepseek-v3 hunyuan-dense joyai-llm"),
)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {name: kind for kind, names in _KINDS for name in names.split()}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Raises ModelFileError `unsupported_model` for a name that is not known."""
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise unsupported(f"the pre-tokenizer {name} is not supported") from None
