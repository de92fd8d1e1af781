"""Guards of the promises, each with the code that is left without it: the test of the promise must fail then."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.guards import Mutant

MUTANTS = (
    Mutant(
        "R1", "lightning_core/storage/journals/journal.py",
        "with self._connection if self._durable else nullcontext():", "with nullcontext():",
        "tests/faults/test_journal_faults.py::test_a_scheduler_killed_at_any_failpoint_resumes_in_the_same_state",
        "after_commit",
    ),
    Mutant(
        "R1", "lightning_core/server/host.py",
        "self.scheduler = replay(self._journal).scheduler", "pass",
        "tests/faults/test_journal_faults.py::test_an_event_that_could_not_be_written_has_no_effect",
    ),
    Mutant(
        "R1", "lightning_core/server/ray_actor.py",
        "        await self._commits.settled()\n        return directive", "        return directive",
        "tests/server/test_group_commit.py::test_nothing_that_rests_on_an_event_leaves_before_its_commit",
    ),
    Mutant(
        "R2", "lightning_core/server/host.py",
        "self.scheduler = recovered.scheduler", "self.scheduler = Scheduler(settings)",
        "tests/faults/test_journal_faults.py::test_a_scheduler_killed_while_it_replays_replays_again",
    ),
    Mutant(
        "R3", "lightning_core/agent/reporting/mailbox.py",
        "            except Exception as error:  # training never fails because of a client\n"
        "                self._lose(error)",
        "            except JoinRefusedError as error:\n                self._lose(error)",
        "tests/callbacks/test_callback.py::test_training_goes_on_without_a_scheduler_and_nothing_is_lost",
    ),
    Mutant(
        "R4", "lightning_core/scheduler/allocation.py",
        "self._free[device] = max(0.0, self._free[device] - share)", "pass",
        "tests/scheduler/test_invariants.py::test_invariants_hold_after_any_events", "edf",
    ),
    Mutant(
        "R5", "lightning_core/scheduler/tables/table.py",
        "if row is None or incarnation != self.incarnation[row]:", "if row is None:",
        "tests/scheduler/test_retry_budgets.py::test_a_finished_incarnation_is_refused_with_all_that_it_saves",
    ),
    Mutant(
        "R8", "callbacks/checkpointing/job_checkpointer.py",
        "        loop._restarting = False\n", "",
        "tests/cluster/test_release.py::test_a_stateful_loader_resumes_bit_for_bit",
    ),
    Mutant(
        "R9", "lightning_core/scheduler/tables/table.py",
        "return np.maximum(self.begin[rows], self.back_at[rows])", "return self.begin[rows]",
        "tests/scheduler/test_reports.py::test_a_worker_that_always_dies_is_launched_with_pauses",
    ),
    Mutant(
        "R10", "lightning_core/scheduler/retry_budgets.py",
        "ExitCause.RAISED: job.retries,", "ExitCause.RAISED: None,",
        "tests/scheduler/test_retry_budgets.py::test_each_kind_of_fault_has_a_budget_of_its_own",
    ),
    Mutant(
        "R15", "lightning_core/scheduler/reports.py",
        "or not is_countable(report):", "or False:",
        "tests/scheduler/test_invariants.py::test_invariants_hold_after_any_events", "edf",
    ),
    Mutant(
        "R6", "lightning_core/storage/manifests.py",
        "same = hashlib.file_digest(file, \"sha256\").hexdigest() == manifest.sha256", "same = True",
        "tests/faults/test_checkpoints.py::test_a_damaged_checkpoint_is_replaced_by_the_previous_one",
    ),
    Mutant(
        "R7", "callbacks/checkpointing/job_checkpointer.py",
        "self._next = now + max(self._every, MIN_TRAINING_PER_SAVE * (now - began))", "self._next = now + 60.0",
        "tests/faults/test_checkpoint_faults.py::test_a_kill_costs_at_most_one_save_interval_and_a_batch",
    ),
    Mutant(
        "R11", "lightning_core/cluster/monitor.py",
        "if slot.silent_for > self._max_silence:", "if False:",
        "tests/cluster/test_pool_manager.py::test_a_worker_that_hangs_is_given_up_before_ten_seconds",
    ),
    Mutant(
        "R11", "lightning_core/cluster/monitor.py",
        "            if slot.worker is None:\n                continue",
        "            assert slot.worker is not None\n            if False:\n                continue",
        "tests/cluster/test_pool_manager.py::test_a_hung_gang_is_given_up_once_and_other_workers_stay_monitored",
    ),
    Mutant(
        "R6", "callbacks/checkpointing/checkpoint_io.py",
        "if refused and strict:", "if False:",
        "tests/faults/test_checkpoints.py::test_an_unloadable_checkpoint_replaces_no_other",
    ),
    Mutant(
        "F27", "callbacks/core_callback.py",
        "self._fit.hangs.excuse(saves=True)", "pass",
        "tests/callbacks/test_hangs.py::test_where_a_training_may_stay_as_long_as_it_likes", "step",
    ),
    Mutant(
        "F27", "lightning_core/agent/steering/steering.py",
        "        self._hangs.done()  # it may take any time\n        lock =",
        "        self._hangs.turn(Phase.TRAINING)\n        lock =",
        "tests/callbacks/test_hangs.py::test_where_a_training_may_stay_as_long_as_it_likes", "device",
    ),
    Mutant(
        "R12", "lightning_core/scheduler/allocation.py",
        "0 if device in unavailable else n if slots is None else slots", "n if slots is None else slots",
        "tests/scheduler/test_retry_budgets.py::test_no_job_is_launched_on_an_unavailable_device",
    ),
    Mutant(
        "R12", "lightning_core/cluster/launcher.py",
        "if len(slots) < len(found):", "if not slots:",
        "tests/cluster/test_pool_manager.py::test_all_ranks_are_launched_or_none",
    ),
    Mutant(
        "R13", "callbacks/checkpointing/job_writer.py",
        "written, number, message = strategy.broadcast((ours.written, number, message))", "written = ours.written",
        "tests/faults/test_checkpoint_faults.py::test_all_ranks_know_whether_the_first_could_save",
    ),
    Mutant(
        "R14", "lightning_core/node/signals.py",
        "exit_at_once(128 + number)", "exit_at_once(1)",
        "tests/faults/test_shutdown.py::test_a_second_signal_ends_all_processes_at_once",
    ),
    Mutant(
        "R17", "lightning_core/server/connections.py",
        "process.paid_until = max(process.paid_until, earliest) + (1 + size / BYTES_PER_CALL) / CALLS_PER_SECOND",
        "pass",
        "tests/server/test_budgets.py::test_calls_are_delayed_beyond_a_rate_for_all_connections_of_a_process",
    ),
    Mutant(
        "R18", "lightning_core/storage/journals/anchor.py",
        "if self.boot and self.boot == boot_id():", "if False:",
        "tests/server/test_host.py::test_deadlines_do_not_move_when_the_clock_is_changed",
    ),
    Mutant(
        "R22", "lightning_core/server/connections.py",
        "self._open.discard(connection)", "pass",
        "tests/server/test_budgets.py::test_connections_are_forgotten",
    ),
    Mutant(
        "R23", "lightning_core/policies/classic.py",
        "np.argsort(jobs.deadline, kind=\"stable\")", "np.argsort(-jobs.deadline, kind=\"stable\")",
        "tests/storage/test_golden.py::test_the_events_of_a_golden_journal_lead_to_the_same_decisions", "edf",
    ),
    Mutant(
        "S1", "lightning_core/cluster/ray_cluster.py",
        "if not has_token():  # Ray was imported", "if False:  # Ray was imported",
        "tests/test_security.py::test_a_ray_without_token_authentication_is_stopped",
    ),
    Mutant(
        "S2", "lightning_core/storage/private_files.py",
        "before = os.umask(0o077)", "before = os.umask(0o022)",
        "tests/test_security.py::test_the_spec_of_a_run_is_readable_by_the_user_only",
    ),
    Mutant(
        "S3", "lightning_core/core/codec.py",
        "import math\n", "import math\nimport pickle\n",
        "tests/test_security.py::test_the_package_neither_unpickles_nor_evaluates",
    ),
    Mutant(
        "S4", "callbacks/checkpointing/checkpoint_io.py",
        "torch.load(file, map_location, weights_only=True)", "torch.load(file, map_location, weights_only=False)",
        "tests/faults/test_checkpoints.py::test_a_checkpoint_with_code_runs_nothing",
    ),
    Mutant(
        "S5", "lightning_core/bundle/yaml_loader.py",
        "if isinstance(key, str | int | float | bool | None) and key in seen:", "if False:",
        "tests/bundle/test_bad_input.py::test_problems_of_files_are_reported_without_heavy_imports",
    ),
    Mutant(
        "S6", "lightning_core/bundle/class_paths.py",
        "    if names[0] in REFUSED:", "    if False:",
        "tests/bundle/test_bad_input.py::test_problems_of_files_are_reported_without_heavy_imports",
    ),
    Mutant(
        "S7", "lightning_core/core/names.py",
        "if not isinstance(name, str) or not _NAME.fullmatch(name):", "if not isinstance(name, str):",
        "tests/bundle/test_bad_input.py::test_problems_of_files_are_reported_without_heavy_imports",
    ),
    Mutant(
        "R21", "lightning_core/storage/journals/journal_reader.py",
        "if entry.digest != digest_of(digest, repr(entry.now), entry.event, entry.answers):", "if False:",
        "tests/storage/test_recovery.py::test_no_single_flipped_bit_is_accepted_or_changes_what_is_replayed",
    ),
    Mutant(
        "R21", "lightning_core/storage/journals/journal.py",
        "if anchor is not None and anchor.number > number:", "if False:",
        "tests/storage/test_recovery.py::test_damage_is_noticed_and_a_recovery_continues_before_it",
    ),
    Mutant(
        "R2", "lightning_core/storage/journals/snapshots.py",
        " or digest_of(before, str(STATE_VERSION), text).encode() != digest:", ":",
        "tests/storage/test_snapshots.py::test_a_damaged_snapshot_is_passed_over",
    ),
    Mutant(
        "S13", "lightning_core/storage/private_files.py",
        "    _check_owner(path, status, {this_user(), 0})\n    if not closed:", "    if not closed:",
        "tests/storage/test_ownership.py::test_an_entry_of_another_user_is_refused",
    ),
    Mutant(
        "S14", "lightning_core/cluster/ray_head.py",
        "if not (mark := _mark_of(head)) or not is_marked(head[\"pid\"], MARK, mark):", "if False:",
        "tests/cluster/test_head.py::test_a_process_without_the_mark_is_not_ended",
    ),
    Mutant(
        "S15", "lightning_core/storage/atomic_files.py",
        "file = path.open(\"xb\")", "file = path.open(\"wb\")",
        "tests/storage/test_regular_files.py::test_a_name_that_exists_is_not_written_to",
    ),
    Mutant(
        "F13", "lightning_core/server/connections.py",
        "return max(process.paid_until - now, 0.0)", "return 0.0",
        "tests/server/test_budgets.py::test_a_client_that_reports_a_thousand_times_too_much_slows_no_other_client",
    ),
    Mutant(
        "S16", "lightning_core/server/connections.py",
        "while self._held_at_most > MAX_HELD_BYTES:", "while False:",
        "tests/server/test_budgets.py::test_unfinished_lines_hold_no_more_than_the_budget",
    ),
    Mutant(
        "S8", "lightning_core/report/svg.py",
        "return html.escape(clean(str(text)), quote=True)", "return str(text)",
        "tests/view/test_report.py::test_text_from_outside_is_escaped",
    ),
    Mutant(
        "R24", "lightning_core/parts/market/cloud/machine_notes.py",
        "machine.pid = next((pid for pid in _processes() if is_marked(pid, MARK, machine.mark)), 0)", "pass",
        "tests/parts/market/test_provisioners.py::test_a_provisioner_killed_while_a_node_begins_leaves_none_behind",
        "process and after",
    ),
    Mutant(
        "R25", "lightning_core/parts/market/cloud/provisioner_actor.py",
        "if self._closed or self._lease.is_over(time.monotonic()):", "if self._closed:",
        "tests/parts/market/test_provisioner_actor.py"
        "::test_without_an_answer_within_the_lease_all_nodes_are_given_back_and_then_asked_for_anew",
    ),
    Mutant(
        "R26", "lightning_core/parts/market/online/online_plan.py",
        "constrain(spot, on_demand, guarded=True)", "constrain(spot, on_demand, guarded=False)",
        "tests/parts/market/test_spot_live.py::test_on_demand_nodes_meet_the_deadline_after_any_preemptions",
    ),
    Mutant(
        "R27", "lightning_core/parts/market/market_controller.py",
        "if left is None or not wanted.all:", "if True:",
        "tests/parts/market/test_budget.py::test_no_more_is_spent_than_may_be",
    ),
    Mutant(
        "R28", "lightning_core/parts/market/online/quote_history.py",
        "np.searchsorted(numbers, np.arange(number + 1), side=\"right\")",
        "np.searchsorted(numbers, np.arange(number + 1), side=\"left\")",
        "tests/parts/market/test_controller_on_recording.py"
        "::test_the_controller_holds_and_pays_on_a_recording_what_a_backtest_does",
    ),
    Mutant(
        "R29", "lightning_core/parts/market/online/node_bill.py",
        "at = now / self._seconds if quote.interval is None", "at = now // self._seconds + 1 if quote.interval is None",
        "tests/parts/market/test_node_bill.py::test_a_price_holds_from_when_it_is_quoted",
    ),
    Mutant(
        "R30", "callbacks/checkpointing/job_writer.py",
        "with RandomStateKept():  # hooks of the user may draw", "if True:",
        "tests/callbacks/test_others_code.py::test_names_with_other_meanings_change_nothing", "Kinds",
    ),
    Mutant(
        "R30", "lightning_core/agent/reporting/lr_courses.py",
        "if not is_pure(function):", "if False:",
        "tests/callbacks/test_matrix.py::test_a_training_is_the_same_with_the_callback", "pool",
    ),
    Mutant(
        "R31", "callbacks/fit.py",
        "keeps, stops = self._ranks.told(keeps, stops)", "pass",
        "tests/callbacks/test_matrix.py::test_a_training_is_the_same_with_the_callback", "ddp and yes",
    ),
    Mutant(
        "R32", "lightning_core/variables.py",
        "return environment.get(f\"{PREFIX}DISABLE\", \"\").lower() not in OFF", "return False",
        "tests/callbacks/test_switch.py::test_one_switch_makes_every_hook_do_nothing",
    ),
    Mutant(
        "F35", "lightning_core/node/arbiter_client.py",
        "if self._silent_for > STOPPED_AFTER and not self._is_stopped:", "if False:",
        "tests/node/test_device_arbiter.py"
        "::test_training_goes_on_while_the_arbiter_is_stopped_and_takes_turns_again_after_it",
    ),
    Mutant(
        "F35", "lightning_core/node/arbiter_client.py",
        "self._turn, until = None, time.monotonic() + timeout", "until = time.monotonic() + timeout",
        "tests/node/test_device_arbiter.py"
        "::test_what_was_taken_without_the_arbiter_is_released_when_it_works_again",
    ),
    Mutant(
        "F36", "lightning_core/agent/user_code/guarded.py",
        "            return otherwise", "            raise",
        "tests/callbacks/test_others_code.py::test_what_refuses_us_trains_as_without_us", "logger-alone",
    ),
    Mutant(
        "F36", "lightning_core/agent/user_code/guarded.py",
        "with RandomStateKept():", "if True:",
        "tests/callbacks/test_others_code.py::test_what_refuses_us_trains_as_without_us", "logger-alone",
    ),
    Mutant(
        "F37", "lightning_core/view/lossy_output.py",
        "return len(memoryview(data).cast(\"B\"))", "raise",
        "tests/view/test_lossy_output.py::test_what_acts_goes_on_whatever_becomes_of_its_output",
    ),
    Mutant(
        "F38", "lightning_core/agent/participant.py",
        "os.environ[WITHIN] = f\"{os.getpid()}:{participant.name}\"", "pass",
        "tests/callbacks/test_within.py::test_a_process_that_a_training_starts_and_waits_for_has_part_in_its_grant",
        "started",
    ),
    Mutant(
        "F38", "lightning_core/agent/participant.py",
        "return next((participant for participant in _trainings_here() if participant.host is None), None)",
        "return None",
        "tests/callbacks/test_within.py::test_one_within_takes_the_turns_of_the_first",
    ),
    Mutant(
        "F39", "lightning_core/server/discovery.py",
        "if given.startswith(\"~\") else given", "if False else given",
        "tests/server/test_homes.py::test_an_account_without_a_home_has_a_pool_of_its_own",
    ),
)  # fmt: skip


def names() -> Iterator[str]:
    """Return a name for each mutant."""
    for number, mutant in enumerate(MUTANTS):
        yield f"{mutant.row}-{number}"
