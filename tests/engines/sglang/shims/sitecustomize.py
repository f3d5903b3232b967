"""Lets a torchvision built for CUDA be imported beside a torch for CPUs: declares the operators it looks for."""

import importlib.abc
import sys


class _Vision(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            sys._kept = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                sys._kept.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, _Vision())
