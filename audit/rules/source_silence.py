"""A source that used to speak says nothing any more, while others go on."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.rules._baseline import Settings
from kvwitness.audit.rules._frames import SECOND_NS, report, site_of
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict
from kvwitness.audit.turns import in_turn
from kvwitness.audit.wording import number_of

ID = "source-silence"


def query(context: Context, settings: Settings) -> pl.DataFrame:
    """Compare the time since a source's last event with the longest pause that it ever made."""
    quiet = _quiet(context, settings)
    if not quiet:
        return report(context, ID, pl.DataFrame())
    at = pl.col("ref_ns")
    pause = (at - pl.col("prev_ref_ns")).fill_null(0)
    events = context.events.filter(pl.col("source").is_in(quiet))
    told = pl.concat(
        turn.group_by("source", maintain_order=True).agg(
            n=pl.len(), first=at.min(), last=at.max(), pause=pause.max(), ev=pl.col("ev").last()
        )
        for turn in in_turn(events, ["ref_ns"], before=["ref_ns"])
    )
    known = told.group_by("source", maintain_order=True).agg(
        pl.col("n").sum(), pl.col("first").min(), pl.col("last", "pause").max(), evs=pl.col("ev").tail(1)
    )
    known = known.with_columns(silence=context.horizon_ns - pl.col("last"))
    silent = known.filter(pl.col("silence") >= float(settings["factor"]) * pl.col("pause"))
    rows = silent.with_columns(
        engine=site_of("source"),
        verdict=pl.lit("unproven"),
        missing=pl.format("everything of {} since its last event", "source"),
        why=pl.format(
            "{} was never silent for more than {} s in {} events, and is silent for {} s now",
            "source",
            number_of(pl.col("pause") // SECOND_NS),
            number_of("n"),
            number_of(pl.col("silence") // SECOND_NS),
        ),
    )
    return report(context, ID, rows)


def _quiet(context: Context, settings: Settings) -> list[str]:
    """The sources whose record is long enough, and which have said nothing for long enough: of them alone the pauses
    have to be known."""
    spoken = (
        context.acts.filter(pl.col("source").is_not_null())
        .group_by("source")
        .agg(pl.col("events").sum(), pl.col("first_ns").min(), pl.col("last_ns").max())
    )
    quiet = spoken.filter(
        (pl.col("events") >= int(settings["min_events"]))
        & (pl.col("last_ns") - pl.col("first_ns") >= float(settings["history_s"]) * SECOND_NS)
        & (context.horizon_ns - pl.col("last_ns") >= float(settings["min_silence_s"]) * SECOND_NS)
    )
    return quiet.collect()["source"].to_list()


def _example(until: int) -> str:
    """A gateway that goes on, and an engine that speaks every ten minutes until so many seconds."""
    lines = [
        f'{{"t":{t},"seq":{n},"source":"{source}","event":"engine.clock","engine":"{engine}","offset_s":0}}'
        for source, engine, end in (("e/0", "e", until), ("gateway", "gateway", 3 * 86_400))
        for n, t in enumerate(range(1, end, 600), start=1)
    ]
    return "\n".join(lines) + "\n"


RULE = Rule(
    id=ID,
    title="A source fell silent",
    verdicts=(Verdict.UNPROVEN,),
    severity="medium",
    meaning=(
        "A source of events says nothing for three times as long as it ever paused before, while others go on. What "
        "happens there is not seen, and whatever is judged clean since then is so for want of evidence. If its pauses "
        "come from one distribution, whatever its form, the newest of N is the longest with a chance of 1 in N, and "
        "one of three times the longest is rarer still; a finding ends when the source speaks again."
    ),
    needs=(),
    false_positives="An engine that was taken out of service; a clock ahead of all others.",
    references=(),
    atlas=(),
    cwe=("CWE-778",),
    query=query,
    anomaly=True,
    lasting=True,
    params=(
        Param("min_events", 200, "events that a source must have on record"),
        Param("history_s", 86_400.0, "how long its record must be", "s"),
        Param("min_silence_s", 900.0, "shortest silence that counts", "s"),
        Param("factor", 3.0, "how many times its longest pause"),
    ),
    positive=Example(title="an engine stops after two days", verdict="unproven", trace=_example(2 * 86_400)),
    negative=Example(title="both go on", trace=_example(3 * 86_400)),
)
