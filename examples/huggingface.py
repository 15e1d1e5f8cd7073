"""AC/DC in Hugging Face's Trainer: a small GPT-2, initialised at random, learns to repeat a pattern.

Lines marked + are all acdc needs. Run it again after stopping it with Ctrl-C: it resumes.
"""

import sys

import torch
from transformers import (  # pyright: ignore[reportMissingImports]
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

import acdc  # +
from acdc.integrations.huggingface import SparsifierCallback, newest_checkpoint  # +

folder = sys.argv[1] if len(sys.argv) > 1 else "sparse-gpt2"
set_seed(0)
halves = torch.randint(1, 32, (512, 8))
data = [{"input_ids": row, "labels": row} for row in torch.cat([halves, halves], dim=1)]

model = GPT2LMHeadModel(
    GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0)
)
callback = SparsifierCallback(acdc.ACDC(sparsity=0.8, epochs=12))  # +
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir=folder,
        num_train_epochs=12,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        save_strategy="epoch",
        save_total_limit=2,
        logging_strategy="epoch",
        report_to=[],
        dataloader_pin_memory=False,
        disable_tqdm=True,
    ),
    train_dataset=data,
    callbacks=[callback],  # +
)
trainer.train(resume_from_checkpoint=newest_checkpoint(folder))

print(callback.result)
for name in ("sparse", "dense"):  # plain models, which from_pretrained reads
    trainer.model.load_state_dict(GPT2LMHeadModel.from_pretrained(f"{folder}/{name}").state_dict())
    print(f"{name:6}  loss {trainer.evaluate(data)['eval_loss']:.3f}")
