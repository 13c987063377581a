"""Kubernetes operator: turns RLTrainingRun objects into KubeRay objects and keeps them going."""
