"""kvwitness.gpu_tracer"""
