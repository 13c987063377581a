# `make help` lists the targets. Everything a target needs is installed by it, into .venv and .tools.
SHELL := /bin/bash
PYTHON ?= python3
SEED ?= 1
COUNT ?= 200
SECONDS ?= 1800
RAY ?= 2.50.0
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(INSTALLED) ## install everything into .venv (about 5 GB: PyPI's torch carries CUDA)

$(INSTALLED): pyproject.toml constraints.txt
	@scripts/setup $(PYTHON) $(VENV)
	@touch $@

demo: $(INSTALLED) ## train examples/quickstart.yaml here: minutes on two CPU cores (SEED=2 for another seed)
	@$(BIN)/rltrain run examples/quickstart.yaml --set seed=$(SEED) --out runs/quickstart --overwrite

test: $(INSTALLED) browser test-tools ## unit and integration tests, with line coverage of the pure modules (the first time builds a kube-apiserver with its scheduler, Kueue, kwok, an S3 server and Prometheus)
	@scripts/test

test-tools: ## build what the tests need beside Python
	@scripts/tools helm apiserver kube-scheduler kube-controller-manager kueue-crds kueue kwok versitygw promtool prometheus

test-numerics: $(INSTALLED) ## our formulas against verl's, TRL's and OpenRLHF's own functions, to 1e-6 (ARGS="-k gae" for some of them)
	@scripts/test-numerics $(ARGS)

test-vllm: $(INSTALLED) ## the vLLM engine against ours, in its CPU build (ARGS="-k weights" for some of them)
	@scripts/test-vllm $(ARGS)

test-ray: $(INSTALLED) ## small runs with another Ray than ours (RAY=2.55.1 for that version, ARGS=tests/... for other tests)
	@scripts/test-ray $(RAY) $(ARGS)

mutants: $(INSTALLED) ## do the pure folders' tests notice random changes? (SEED=2 for others, COUNT=20 for fewer, ARGS=api for a folder)
	@scripts/mutants --seed $(SEED) --count $(COUNT) $(ARGS)

fuzz: $(INSTALLED) ## odd objects against a real API server and the operator for half an hour (SECONDS=300 for less, SEED=2 for others)
	@scripts/tools apiserver
	@scripts/fuzz --seconds $(SECONDS) --seed $(SEED)

chaos: $(INSTALLED) ## kills and stops of samplers, ranks, buffer and driver in every phase of real runs here (ARGS="--seed 2 --faults 40 --worlds ranks", ARGS=--help)
	@scripts/chaos $(ARGS)

e2e: $(INSTALLED) ## end-to-end tests on a real kind cluster, which it makes (ARGS="-k suspend" for some of them)
	@scripts/e2e $(ARGS)

e2e-ready: $(INSTALLED) ## its cluster and images, and no test: E2E_READY=1 make e2e then begins at once
	@scripts/e2e --ready

e2e-tenants: $(INSTALLED) ## a hundred attempts of one team against another, on the same cluster
	@scripts/e2e -m tenants $(ARGS)

e2e-vllm: $(INSTALLED) ## vLLM (its build for CPUs) on the same cluster: two parts of a sampler in one pod and in two, a server outside the run; builds an image of its own
	@E2E_TRAINER=vllm-cpu scripts/e2e -m vllm $(ARGS)

e2e-gpu: $(INSTALLED) ## the scenarios on accelerators, on the current kube context; skipped where it offers none
	@scripts/e2e-gpu $(ARGS)

gpu-lane: $(INSTALLED) ## what only GPUs show, on this machine's, without a cluster; tables against TRL + vLLM (ARGS="--shape 0.5b --only learner,engine" for some)
	@scripts/gpu-lane $(ARGS)

cluster: $(INSTALLED) ## a kind cluster with KubeRay, for developing by hand
	@scripts/cluster up

cluster-down: ## delete that cluster
	@scripts/cluster down

tools: ## build the Kubernetes programs that tests and clusters need, into .tools
	@scripts/tools

images: ## build the operator's and the trainer's image
	@scripts/images

release: $(INSTALLED) ## chart, images as archives, what is in them, checksums and signatures, in dist (RELEASE_KEY=FILE; TRIAL=1 without)
	@scripts/release $(ARGS)

release-check: $(INSTALLED) ## do two builds of the operator's image and the chart give the same bytes, and are they signed?
	@scripts/release-check $(ARGS)

locks: $(INSTALLED) ## write images/requirements anew: what each image installs, with hashes
	@scripts/locks

manifests: $(INSTALLED) ## regenerate the CRDs in the chart, and manifests/ from the chart
	@scripts/tools helm
	@scripts/manifests

lint: $(INSTALLED) ## ruff, mypy --strict, import-linter
	@scripts/lint

bench: $(INSTALLED) ## measure against peers; tables on screen, JSON in bench/results
	@scripts/bench

bench-operator: $(INSTALLED) ## the operator under 1,000 runs at once, also of a hostile namespace, against a real API server
	@scripts/tools apiserver
	@$(BIN)/python bench/operator_load.py $(ARGS)
	@$(BIN)/python bench/operator_tenants.py

docs: $(INSTALLED) ## regenerate docs/api-reference.md and the README's picture
	@$(BIN)/python -m rl_api.reference > docs/api-reference.md
	@scripts/picture

browser:
	@scripts/browser

clean: ## remove run folders, benchmark environments and caches (the installation stays)
	rm -rf runs dist bench/results bench/.venv* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage

.PHONY: help setup demo test test-tools test-numerics test-vllm test-ray mutants fuzz chaos e2e e2e-ready e2e-tenants e2e-vllm e2e-gpu gpu-lane cluster cluster-down tools images release release-check locks manifests lint bench bench-operator bench-fleet bench-arrivals bench-top bench-weights bench-memory docs browser clean

bench-fleet: $(INSTALLED) ## 1,000 runs of 50 namespaces under Kueue's quotas on 2,000 nodes of kwok's, against as many plain RayJobs (ARGS="--runs 50 --namespaces 5 --nodes 100 --urgent 10" for a small one)
	@scripts/tools apiserver kueue-crds kueue kwok
	@$(BIN)/python bench/fleet.py $(ARGS)

bench-arrivals: $(INSTALLED) ## what training 50 urgent runs cost three long ones under Kueue, with the priority boost and without (an hour and a quarter; ARGS="--arrivals 10 --scale 1" for three minutes)
	@scripts/tools apiserver kueue-crds kueue kwok
	@$(BIN)/python bench/arrivals.py $(ARGS)

bench-top: $(INSTALLED) ## `rltrain top` where 1,000 runs of 50 namespaces are, beside kubectl get (ARGS="--runs 30 --namespaces 3 --tries 1" for few)
	@scripts/tools apiserver
	@$(BIN)/python bench/fleet_top.py $(ARGS)

bench-weights: $(INSTALLED) ## weights by each transport against torch.save through Ray, 10 and 100 MB to one and two samplers (ARGS="--megabytes 500 2000 --samplers 1 8" for more)
	@$(BIN)/python bench/weights.py $(ARGS)

bench-memory: $(INSTALLED) ## resident memory of learner ranks against what `rltrain plan` reckons (ARGS="--quick --ranks 2" for a small one)
	@$(BIN)/python bench/memory.py $(ARGS)
