"""`codauc train --test-site each`: every site left out in turn, and one table."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from codauc._internal.imports import importing_from_here
from codauc._internal.text_table import table
from codauc.cli.options import parsers
from codauc.cli.output import say, say_json
from codauc.cli.setting_options import in_options
from codauc.runs.directory import EVERY, REPORT
from codauc.runs.settings import RunSettings

_OF_ONE_RUN = ("tensorboard", "profile", "callback")


def each_site(settings: RunSettings, options: dict[str, Any]) -> int:
    """Train with all sites and without each of them; print what leaving one out costs."""
    from codauc.report.site_cards import LEFT_OUT_HEADER, left_out_rows
    from codauc.training.left_out import each_site as run

    refused = next((name for name in _OF_ONE_RUN if options[name]), None)
    if refused is not None:
        raise ValueError(f"--test-site each with --{refused}: expected one run; leave one out.")
    with importing_from_here([settings.model.name]):
        found = run(
            settings,
            options["out"],
            resume=options["resume"],
            overwrite=options["overwrite"],
            quiet=options["quiet"] or options["json"],
            words=partial(in_options, known=parsers()[1]["train"].options),
        )
    if not found.complete:
        say(f"Ended before all sites. Resume with: codauc train --resume --out {found.path}")
        return 130
    plain = [asdict(site) for site in found.sites]
    if options["json"]:
        say_json({"run": str(found.path), "sites": plain})
    else:
        say(table(LEFT_OUT_HEADER, left_out_rows(plain)))
        say(f"Report: {found.path / EVERY / REPORT}")
    return 0
