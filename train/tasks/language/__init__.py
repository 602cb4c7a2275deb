"""Fine-tune language models on perturbed embeddings."""
