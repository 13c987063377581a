"""What a person looks at after (and while) a run trains: metrics, timeline, summary and the report page.

Everything here reads and writes plain files in the run folder, so a report can be made again at any time:
`metrics.jsonl`, `tensorboard/`, `timeline.json`, `summary.json`, `examples.json`, `report.html`.
"""
