"""Fine-tuning a tiny BERT with transformers' Trainer; synthetic sentences. Without accelerate,
which the Trainer needs, it says so and ends with status 77: skipped."""

import importlib.util
import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

if importlib.util.find_spec("accelerate") is None:
    print("transformers' Trainer needs the package accelerate, which is not installed")
    sys.exit(77)

set_seed(0)


class Sentences(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, 1000, (n, 64), generator=g)
        self.labels = (self.ids[:, 0] > 500).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i],
            "attention_mask": torch.ones(64, dtype=torch.long),
            "labels": self.labels[i],
        }


model = BertForSequenceClassification(
    BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        num_labels=2,
    )
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=16,
        max_steps=110,
        logging_steps=20,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
        use_cpu=True,
        learning_rate=1e-4,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Sentences(1600, 0),
        eval_dataset=Sentences(160, 1),
    )
    trainer.remove_callback(__import__("transformers").PrinterCallback)
    trainer.train()
    losses = [round(entry["loss"], 4) for entry in trainer.state.log_history if "loss" in entry]
    print("losses", losses)
    print("eval", round(trainer.evaluate()["eval_loss"], 4))
