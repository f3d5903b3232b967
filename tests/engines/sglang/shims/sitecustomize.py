"""What SGLang takes for granted on a machine with a GPU.

A torchvision built for CUDA is to be imported beside a torch for CPUs: the operators it looks for are declared. And
0.5.23 hands page numbers to Mooncake in pinned memory, which needs a GPU: it is told not to.
"""

import importlib.abc
import importlib.util
import sys


class _Vision(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            sys._kept = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                sys._kept.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


class _Mooncake(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "sglang.srt.disaggregation.mooncake.conn":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def unpinned(module):
            execute(module)
            module.MooncakeKVSender.supports_host_tensor_indices = False

        spec.loader.exec_module = unpinned
        return spec


sys.meta_path[:0] = [_Vision(), _Mooncake()]
