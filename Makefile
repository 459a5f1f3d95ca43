# Two commands for a new user: `make demo` and `make test`. `make detection-demo` trains detectors. Each builds .venv first,
# pinned by constraints.txt.
PYTHON ?= python3
BENCH = .venv/bin/bench

.PHONY: demo detection detection-demo test lint benchmarks clean

demo: .venv/installed
	$(BENCH) demo

detection: .venv/detection

DETECTIONS = results/detection-demo
detection-demo: .venv/detection
	$(BENCH) pretrain supervised_shapes --resume --out $(DETECTIONS)/encoder
	$(BENCH) run --backbone supervised_shapes --backbone random_resnet18 --task 'shapes_*' --results $(DETECTIONS)
	$(BENCH) leaderboard show --results $(DETECTIONS)
	$(BENCH) show-predictions shapes $(DETECTIONS)/supervised_shapes/shapes/shapes-c4-trunk@1.seed0/predictions.json --out $(DETECTIONS)/pictures

test: .venv/installed
	@$(MAKE) --no-print-directory .venv/detection || echo "without Detectron2 its tests are skipped" >&2
	.venv/bin/python -m pytest -q -n 2

lint: .venv/installed
	.venv/bin/ruff check . && .venv/bin/ruff format --check .

benchmarks: .venv/installed  # one that needs a GPU exits with 3 where there is none
	for script in $(filter-out benchmarks/timing.py,$(wildcard benchmarks/*.py)); do .venv/bin/python $$script || [ $$? = 3 ] || exit 1; done

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ringbench needs Python 3.11 or newer, found $$($(PYTHON) --version 2>&1); choose one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

.venv/detection: .venv/installed
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BENCH) setup detection
	@touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .cache build dist
