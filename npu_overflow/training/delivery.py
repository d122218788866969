"""What a session does with a collection: analyze it, beside the training where that takes long, save it, show it to whom it concerns."""
from __future__ import annotations

import dataclasses
import io
import sys
import threading
import time
from typing import Any, Callable, List, Optional, Tuple

from npu_overflow import messages
from npu_overflow.collect.base import Collector, Training
from npu_overflow.report.model import Report
from npu_overflow.training import console, job, reports_io
from npu_overflow.training.manifest import Manifest
from npu_overflow.training.neighbours import has_judged, neighbours
from npu_overflow.training.options import WatchOptions
from npu_overflow.training.pause import Script

__all__ = ["Reporting"]

#: the end of a training waits this long for a report that is being made
JOIN_SECONDS = 60.0
#: ranks on a shared path wait this long for what the lower ones find, …
LISTEN_SECONDS = 20.0
#: … where an exception has ended the training, this long
LISTEN_SHORTLY = 3.0
_POLL_SECONDS = 0.2
#: between two steps asking takes one part in so many of the time: with a thousand ranks it is slow
_SHARE = 50


@dataclasses.dataclass
class _Waiting:
    """A report that waits for the word of other ranks; ``report`` None: only the line that the overflow was another's."""

    step: int
    judged: Optional[int]
    until: float
    report: Optional[Report] = None
    path: Optional[str] = None
    folder: str = ""
    limit: int = 0
    again: bool = False


class Reporting:
    """From a collection to a report that somebody reads.

    A part of ``Session``, in a file of its own; it uses the session's state and makes none that others write.
    """

    options: WatchOptions
    script: Script
    state: str
    reports: List[Report]
    board: Any
    stop_requested: bool
    say: Callable[..., None]
    fail: Callable[[], None]
    _say_refused: Callable[[str, str, OSError], None]
    _collector: Optional[Collector]
    _training: Optional[Training]
    _manifest: Manifest
    _ranks: job.Ranks
    _step: int
    _waiting: Optional[_Waiting]
    _listen_again: float
    _collect_from: Optional[int]
    _last_culprit: Optional[str]
    _active: bool
    _beside: Optional[Tuple[threading.Thread, List[Any]]]
    _change: Callable[[str], None]
    _write_manifest: Callable[[], None]

    @property
    def _language(self) -> str:
        return self.options.language or messages.language_of_user()

    def _rescued(self) -> bool:
        """Whether a training that failed before its trigger has left something to analyze."""
        wanted = self.state in ("watching", "reported") and self._beside is None and len(self.reports) < self.options.max_reports
        return wanted and self._collector is not None and hasattr(self._collector, "rescue") and self._collector.rescue()

    def _report(self, short: bool = False) -> None:
        """The training ends while collecting: analyze what there is, save and print it; short above the traceback of one that failed."""
        self._change("reported")
        if getattr(self._collector, "in_background", False):
            self._gather_beside()  # so that waiting for it has a bound
            self._take(wait=True, short=short, last=True)
        else:
            self._deliver(self._gather(), short)

    def _gather_beside(self) -> None:
        """The device may still be writing, and a tree can have gigabytes: it is waited for and analyzed beside the training.

        The report is shown by the training's own thread, between two steps.
        """
        made: List[Any] = []

        def gather() -> None:
            try:
                made.append(self._gather())
            except Exception:
                self.fail()

        self._beside = (threading.Thread(target=gather, name="npu_overflow_report", daemon=True), made)
        self._beside[0].start()

    def _take(self, wait: bool = False, short: bool = False, last: bool = False) -> None:
        """Show the report that was made beside the training, once it is ready; wait for it within a bound."""
        if self._beside is None:
            return
        worker, made = self._beside
        worker.join(JOIN_SECONDS if wait else 0.0)
        if worker.is_alive():
            if last:
                assert self._collector is not None and self._training is not None
                folder = self._collector.tree or self._training.dump_path
                self.say("watch.late", always=True, seconds="%g" % JOIN_SECONDS, folder=reports_io.shown(folder))
            return
        self._beside = None
        for gathered in made:
            self._deliver(gathered, short)

    def _gather(self) -> Optional[Tuple[Report, Optional[str], str]]:
        """Analyze what was collected and save it: (report, path of the saved one, folder), or None where nothing was."""
        assert self._collector is not None and self._training is not None
        self._collector.stop()
        tree = self._collector.tree
        self._manifest.remarks = [(code, dict(values)) for code, values in self._collector.remarks]
        self._manifest.reason = self._collector.reason
        if tree is None and self._collector.reason is None:
            return None
        self._write_manifest()  # the analysis reads it
        folder = tree or self._training.dump_path
        theirs = self._collector.reason == "other_rank"  # what lies in a shared folder then is another rank's
        report = reports_io.analyzed(folder, self._manifest) if tree and not theirs else reports_io.empty(folder, self._manifest)
        first = None if report.first is None else next((item for item in report.operators if item.rank in (None, self._ranks.rank)), report.first)
        self._manifest.finding = None if first is None else {"op_name": first.op_name, "op_type": first.op_type, "step": first.train_step}
        self._manifest.judged = self._collect_from if self._collect_from is not None else self._step
        path = self._saved(report, folder)
        self._write_manifest()  # other ranks look for the finding
        return report, path, folder

    def _saved(self, report: Report, folder: str) -> Optional[str]:
        """Path of the report's text, or None where the disk refuses: then it is printed all the same."""
        try:
            return reports_io.save(report, folder, self._manifest, self._language)
        except OSError as error:
            self._say_refused("watch.not_saved", folder, error)
            return None

    def _deliver(self, gathered: Optional[Tuple[Report, Optional[str], str]], short: bool = False) -> None:
        """Show a report, on the training's thread."""
        if gathered is None:
            self._change("watching")
            if not short:  # an exception ended the training: nobody has looked for further steps
                self.say("watch.nothing_collected" if self._active else "watch.nothing_collected.end")
            return
        report, path, folder = gathered
        self.reports.append(report)
        self.board.report(report, self._step, self._language)
        self._show(report, path, folder, 1 if short else self.options.limit)
        if self.options.on_report is not None:
            self._tell_user(report)
        if self.options.on_overflow == "stop":
            self.stop_requested = True

    def _prefixed(self, text: str) -> str:
        """With several ranks every line says whose it is."""
        mark = job.prefix(self._ranks)
        return "".join(mark + line if line.strip() else line for line in text.splitlines(True))

    def _listen(self, seconds: float = 0.0) -> None:
        """What depends on other ranks, as soon as they know: whether this rank speaks, and whose overflow it was. No longer than the bound."""
        now = time.monotonic()
        if self._waiting is None or (not seconds and now < self._listen_again):
            return
        until = min(self._waiting.until, now + seconds)
        while not self._settled(self._waiting) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        ended = time.monotonic()
        self._listen_again = ended + max(_POLL_SECONDS, _SHARE * (ended - now))

    def _settled(self, waiting: _Waiting) -> bool:
        """Speak, or be quiet for good, where that is known; True then."""
        late = time.monotonic() >= waiting.until
        others = self._others(waiting.judged)
        if waiting.report is None:
            named = next((item for item, found in others if found), None)
            if named is not None:
                self.say("watch.other_rank.named", step=waiting.step, rank=named.rank, name=(named.finding or {}).get("op_name"))
            elif late or all(found is not None for _item, found in others):
                self.say("watch.other_rank", step=waiting.step)
            else:
                return False
        else:
            speaks = job.speaks(self._ranks, waiting.report.first is not None, [(item.rank, found) for item, found in others])
            if speaks is None and not late:
                return False
            if speaks is not False:
                self._print(waiting)
        self._waiting = None
        return True

    def _others(self, judged: Optional[int]) -> List[Tuple[Manifest, Optional[bool]]]:
        """The other ranks that share the dump path: whether they have found something, None where they are still looking."""
        assert self._training is not None
        if not self._ranks.several:
            return []
        return [(item, item.finding is not None if has_judged(item, judged) else None) for item in neighbours(self._training.dump_path, self._manifest)]

    def _show(self, report: Report, path: Optional[str], folder: str, limit: int) -> None:
        culprit = report.first.op_name if report.first is not None else None
        shown = _Waiting(self._step, self._manifest.judged, 0.0, report, path, folder, limit, again=culprit is not None and culprit == self._last_culprit)
        self._last_culprit = self.script.culprit = culprit
        if not self._ranks.several:
            self._print(shown)
            return
        # those without a finding are quiet, and where ranks share the path the lowest with one speaks for all
        if report.first is not None or report.reason == "other_rank":
            self._hear_the_last()  # one that waits already gives way
            shown.until = time.monotonic() + LISTEN_SECONDS
            if report.first is None:
                shown.report = None
            self._waiting = shown
            self._settled(shown)

    def _listen_for_the_last_time(self, failed: bool) -> None:
        """The training ends: others get the time that is left to say their word."""
        self._listen(LISTEN_SHORTLY if failed else LISTEN_SECONDS)
        self._hear_the_last()

    def _hear_the_last(self) -> None:
        """What still waits for other ranks waits no longer."""
        if self._waiting is not None:
            self._waiting.until = 0.0
            self._settled(self._waiting)

    def _print(self, shown: _Waiting) -> None:
        report = shown.report
        if not self.options.verbose or report is None:
            return
        if shown.again:
            assert report.first is not None
            self.say("watch.same_culprit", name=report.first.op_name, step=shown.step)
            return
        from npu_overflow.report import terminal

        text = io.StringIO()
        several = self._ranks.several
        files = None if shown.path is None else reports_io.files_shown(shown.path)
        with console.forgiving("stdout"):
            sys.stdout.write("\n")  # a progress bar may stand on this line
            terminal.print_report(report, file=text if several else None, limit=min(shown.limit, self.options.limit), saved=files,
                                  next_command="npu-overflow analyze %s" % reports_io.shown(shown.folder), language=self._language)
            sys.stdout.write(self._prefixed(text.getvalue()))
            sys.stdout.flush()

    def _tell_user(self, report: Report) -> None:
        try:
            assert self.options.on_report is not None
            self.options.on_report(report)
        except Exception:
            console.log_failure(messages.say("watch.on_report_failed", self._language))
