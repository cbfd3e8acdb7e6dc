"""Experiments as data, one resumable runner for all of them, and tables made from its records alone."""

from fastntk.experiments.lists import DEVELOPMENT, EXPERIMENTS, UNLEARNING
from fastntk.experiments.runner import Step, plan, run_steps
from fastntk.experiments.setting import Method, Request, Setting

__all__ = ["DEVELOPMENT", "EXPERIMENTS", "UNLEARNING", "Method", "Request", "Setting", "Step", "plan", "run_steps"]
