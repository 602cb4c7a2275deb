"""`unroll-jax generate`: answers of a language model to prompts, plain or drafted by its first layers."""

from pathlib import Path

from ..cli import given, parse
from ..config.commands import GenerateArguments
from ..config.errors import UserError
from ..data.conversations import read_prompts
from ..system.files import check_file, expanded, read_object, write_json, writing
from ..tasks.common import check_noise
from .answers import Answer, Settings, answer, drafted
from .opening import Opened, open_decoder
from .unfinished import Unfinished, about

DRAFT = ("exit_layer", "draft_length")  # of the settings, what NAME.draft.json holds
MAX_TOKENS = 256  # of an answer, where no option sets it


def command(arguments: list[str]) -> None:
    """`unroll-jax generate SOURCE --prompts FILE ...`: answers on the screen, or as AlpacaEval reads them."""
    parsed = parse(GenerateArguments, arguments, "unroll-jax generate")
    check(parsed, has_drafts=given(arguments, "--exit-layer") or given(arguments, "--draft-length"))
    out = None if parsed.out is None else check_file(parsed.out, overwrite=parsed.overwrite)
    if out is not None and parsed.speculate is not None:
        _check_draft(_draft_file(out), overwrite=parsed.overwrite)
    prompts = read_prompts(expanded(str(parsed.prompts), "--prompts"))[: parsed.limit]
    opened = open_decoder(parsed.source, dtype=parsed.dtype)
    settings = _settings(parsed, opened)
    if out is None:
        for number, one in enumerate(answer(opened, prompts, settings), start=1):
            print(f"\n{number}. {one.prompt.text}\n\n{one.text}")
        return
    name = parsed.name or opened.name + (f"-gamma{parsed.gamma:g}" if parsed.gamma > 0.0 else "")
    settings = drafted(opened, prompts, settings)
    unfinished = Unfinished(out, about(opened, prompts, settings))
    with writing(f"--out {out}", "give the same command again, or pass another file"):
        done = unfinished.start(prompts)
        if done:
            print(f"{unfinished.path}: goes on behind {len(done)} of {len(prompts)} answers")
        answers = answer(opened, prompts, settings, done=done, keep=unfinished.add)
        write_json(out, [alpaca_row(one, name) for one in answers])
        draft = _draft_file(out)
        if parsed.speculate is not None:
            write_json(draft, {name: getattr(settings, name) for name in DRAFT})
        elif _is_draft(draft):  # of answers which these replace
            draft.unlink()
        unfinished.end()
    print(f"{out}: {len(answers)} answers of {name}")


def check(parsed: GenerateArguments, *, has_drafts: bool) -> None:
    """Refuses options that contradict each other or are out of range, before anything is read."""
    if parsed.speculate is not None and has_drafts:
        raise UserError("--speculate auto chooses --exit-layer and --draft-length; give one or the other")
    if (parsed.exit_layer is None) != (parsed.draft_length is None):
        alone, other = ("--exit-layer", "--draft-length")[:: 1 if parsed.draft_length is None else -1]
        raise UserError(f"{alone} is given without {other}; give both, or --speculate auto")
    for name in ("batch", "max_tokens", "limit", "exit_layer", "draft_length"):
        value = getattr(parsed, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    check_noise(parsed.gamma, parsed.seed)


def _draft_file(out: Path) -> Path:
    """The file beside --out that holds the draft that was chosen."""
    return out.with_name(f"{out.stem}.draft.json")


def _check_draft(path: Path, *, overwrite: bool) -> None:
    """Refuses to replace a draft without consent, and what is none at all."""
    if path.exists() and not _is_draft(path):
        raise UserError(f"{path}, where --speculate auto keeps its choice, holds something else; pass another --out")
    if path.exists() and not overwrite:
        raise UserError(f"{path} is there already; pass another --out, or --overwrite, which replaces it")


def _is_draft(path: Path) -> bool:
    try:
        return set(read_object(path)) == set(DRAFT)
    except UserError:
        return False


def alpaca_row(answer: Answer, generator: str) -> dict[str, str]:
    """An answer as AlpacaEval reads it; the prompt's fields are those of its file."""
    prompt = answer.prompt
    row = {"instruction": prompt.instruction, "output": answer.text, "generator": generator}
    extra = {"input": prompt.input, "dataset": prompt.dataset}
    return row | {name: value for name, value in extra.items() if value}


def _settings(parsed: GenerateArguments, opened: Opened) -> Settings:
    longest = min(MAX_TOKENS, max(1, opened.config.max_positions // 2))
    return Settings(
        chat=parsed.chat,
        max_tokens=parsed.max_tokens or longest,
        batch=parsed.batch,
        temperature=parsed.temperature,
        top_k=parsed.top_k,
        top_p=parsed.top_p,
        gamma=parsed.gamma,
        seed=parsed.seed,
        exit_layer=parsed.exit_layer,
        draft_length=parsed.draft_length,
        auto=parsed.speculate == "auto",
    )
