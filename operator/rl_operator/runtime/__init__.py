"""The operator as a process: looking, acting, the loop, leader election, probes, metrics."""
