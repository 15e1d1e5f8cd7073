"""Adapters to other people's trainers: Hugging Face Trainer, Lightning and Accelerate. Each imports its own host."""
