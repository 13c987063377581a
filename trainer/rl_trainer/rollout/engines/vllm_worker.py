"""What runs inside vLLM's workers, which are processes of their own where a model is divided.

Named to vLLM by `vllm_arguments.WORKER_EXTENSION`; `VllmEngine` calls the methods by their names.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import torch


class WorkerExtension:
    """Methods that a vLLM worker has besides its own; each answers once for every worker."""

    model_runner: Any
    vllm_config: Any

    def rltrain_end_with_its_parent(self) -> None:
        """End this process with the one that started it, however that ends. vLLM's own worker looks at that between two
        calls, and not where it waits for a part of the model that has gone as well."""
        parent = multiprocessing.parent_process()
        if parent is None:  # the engine's own process
            return

        def follow() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=follow, name="end with the parent", daemon=True).start()

    def rltrain_measure_all_tokens(self) -> None:
        """Report log-probs over all tokens at the sampling temperature, as `GenerationResult` has them: vLLM's own are taken
        after top-k and top-p."""
        sampler = getattr(self.model_runner, "sampler", None)
        if sampler is None:  # a stage before the last one samples nothing
            return
        choice = sampler.topk_topp_sampler
        if hasattr(choice, "rltrain_measures"):  # a server may be asked again, by a sampler that came later
            return
        choice.rltrain_measures = True
        choose = choice.forward

        def forward(
            logits: torch.Tensor, generators: Any, k: torch.Tensor | None, p: torch.Tensor | None
        ) -> tuple[torch.Tensor, torch.Tensor | None]:
            if k is None and p is None:
                found: tuple[torch.Tensor, torch.Tensor | None] = choose(logits, generators, k, p)
                return found
            whole = logits.log_softmax(dim=-1, dtype=torch.float32)  # before its logits are overwritten
            return choose(logits, generators, k, p)[0], whole

        choice.forward = forward

    def rltrain_take_from_the_stage_before(self) -> None:
        """Make room for what a stage of a pipeline is given by the one before it. vLLM's own warm-up does so, which a CPU
        without compiling has none of."""
        from vllm.distributed.parallel_state import get_pp_group

        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.get_model().make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )

    def rltrain_has_own_head(self) -> bool:
        """Whether an output head of the model shares its weights with no other layer."""
        model = self.model_runner.get_model()
        shared = [id(value) for module in model.modules() for value in module.parameters(recurse=False)]
        return any(shared.count(id(head.weight)) == 1 for head in _heads(model))

    def rltrain_begin_weights(self) -> None:
        """Make ready for new weights in place of those that are there, as vLLM's `reload_weights` does, which wants all of
        them in one call."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(self.model_runner.get_model())

    def rltrain_load_weights(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Take some of them. A layer is repacked when it is complete, and what it was made of is let go."""
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config):
            self.model_runner.get_model().load_weights(tensors)

    def rltrain_end_weights(self) -> None:
        """All have come."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.model_runner.get_model(), self.vllm_config.model_config)

    def rltrain_repack_heads(self) -> None:
        """A head that is tied to the embeddings gets new weights with them, but on a CPU it computes with a packed copy."""
        for head in _heads(self.model_runner.get_model()):
            head.quant_method.process_weights_after_loading(head)  # type: ignore[operator,union-attr]

    def rltrain_free_bytes(self) -> int:
        """Free memory of this worker's GPU."""
        return int(torch.cuda.mem_get_info()[0])

    def rltrain_clear_cache(self) -> None:
        """Set all keys and values to zero: what is no number would spoil every later sequence, masked or not."""
        for layer in self.vllm_config.compilation_config.static_forward_context.values():
            if isinstance(cache := getattr(layer, "kv_cache", None), torch.Tensor):
                cache.zero_()


def _heads(model: torch.nn.Module) -> list[torch.nn.Module]:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return [module for module in model.modules() if isinstance(module, ParallelLMHead)]
