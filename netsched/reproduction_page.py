"""docs/reproduction.md: published beside measured, made from the claims and the findings and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from netsched.claims import Claim, Published, Side, System, Values
from netsched.reproduce import NAMES, Finding

_HEAD = """\
# Published and measured

Written by `netsched reproduce`, not by hand. Each system's evaluation is recreated in `scenarios/papers/` as
far as it is known; `scenarios/papers/claims/` holds what was published, with its source, and which two runs
are compared. Here is what the simulator gives. It has no packets, no losses and no framework overhead: a gain
that comes from those cannot show, and plain systems often look better here than they were. Nothing has been
adjusted to come near a published figure.

*Inside* means: in the published range; for "up to", between no gain and the figure. A claim is measured in
several variants (models, rates, slices), because papers often do not say in which one a figure was reached.
Parameters that no paper fixes have defaults of ours: other values of them are tried for each system's first
claim. They change what is measured, and count in no column of the table below.

```console
$ netsched reproduce beamer
```

prints one system's part; without a name all are run (minutes) and this page is written.
"""

_WIDEST: Final = 60
"""Characters of a setting that is shown whole."""

Measured = Sequence[tuple[System, Sequence[Finding], Sequence[float]]]
"""Of each system its findings, and the gains with its ablations."""


def page(measured: Measured) -> str:
    """The whole page in Markdown."""
    rows = ["| system | claims | figures measured | of them inside |", "|---|---|---|---|"]
    for system, findings, _ in measured:
        figures = sum(len(finding.gains) for finding in findings)
        inside = figures - sum(len(finding.outside) for finding in findings)
        anchor = system.claims.title.lower().replace(" ", "-")
        rows.append(f"| [{system.claims.title}](#{anchor}) | {len(findings)} | {figures} | {inside} |")
    parts = [_HEAD, "\n".join(rows) + "\n"]
    parts += [section(*each) for each in measured]
    return "\n".join(parts)


def section(system: System, findings: Sequence[Finding], ablated: Sequence[float]) -> str:
    """One system's part of the page."""
    claims = system.claims
    lines = [
        f"## {claims.title}",
        "",
        f"{claims.paper}. Read: {claims.read}. Published on: {claims.published_on}.",
        f"Recreated in `scenarios/papers/{system.name}.yaml`.",
        "",
        f"* Known: {claims.known}",
        f"* Inferred: {claims.inferred}",
        "",
    ]
    for finding in findings:
        lines += [*_claim(system, finding), ""]
    left = list(ablated)
    for variant, values in claims.ablated.items():
        here, left = left[: len(values) + 1], left[len(values) + 1 :]
        lines += [*_ablations(claims.claims[0], variant, values, here), ""]
    if claims.ablations is not None and claims.ablations.note:
        lines += [claims.ablations.note, ""]
    return "\n".join(lines)


def _claim(system: System, finding: Finding) -> list[str]:
    claim, outside = finding.claim, finding.outside
    lines = [
        f"**{claim.what}**: published {published(claim.published)} ({claim.source}). "
        f"Measured: {_measured(claim)}, {_side(claim.system)} against {_side(claim.baseline)}.",
        "",
        "| variant | settings | measured | |",
        "|---|---|---|---|",
    ]
    for name, settings in system.claims.of(claim).items():
        told = ", ".join(_setting(each) for each in settings) or "as the scenario"
        where = f"**{outside[name]}**" if name in outside else "inside"
        lines.append(f"| {name} | {told} | {gain(claim, finding.gains[name])} | {where} |")
    if outside and claim.why:
        lines += ["", f"Why we think so: {claim.why}"]
    return lines


def _measured(claim: Claim) -> str:
    return NAMES[claim.measure] + (f" of {', '.join(claim.jobs)}" if claim.jobs else "")


def _ablations(claim: Claim, variant: str, values: Values, ablated: Sequence[float]) -> list[str]:
    told = [", ".join(f"`{name}={value}`" for name, value in each.items()) for each in values]
    return [
        f"Other values of its parameters, for the first claim, {variant}:",
        "",
        "| parameters | measured |",
        "|---|---|",
        *(
            f"| {which} | {gain(claim, value)} |"
            for which, value in zip(["as above", *told], ablated, strict=True)
        ),
    ]


def _setting(text: str) -> str:
    """A `--set` value in a table: of a long one its key, for the rest is in the file of claims."""
    return f"`{text}`" if len(text) <= _WIDEST else f"another `{text.partition('=')[0]}` (see the claims)"


def _side(side: Side) -> str:
    who = side.policy if side.placement is None else f"{side.policy} + {side.placement}"
    return f"`{who}`" + "".join(f" `--set {each}`" for each in side.set)


def gain(claim: Claim, value: float) -> str:
    """A measured gain as the page prints it."""
    return _figure(value, claim.published, 1)


def published(figure: Published) -> str:
    """A published figure as the page prints it."""
    low, high = (None if each is None else _figure(each, figure, None) for each in (figure.low, figure.high))
    if low is None:
        return f"up to {high}"
    if high is None:
        return f"at least {low}"
    return low if low == high else f"{low} to {high}"


def _figure(value: float, figure: Published, digits: int | None) -> str:
    if figure.form == "times":
        return f"{value:.2f} times"
    percent = 100 * value
    text = f"{percent:g}" if digits is None else f"{percent:.{digits}f}"
    if figure.form == "more":
        return f"{text if percent < 0 else '+' + text} %"
    return f"{text} % less" if percent >= 0 else f"{text.removeprefix('-')} % more"
