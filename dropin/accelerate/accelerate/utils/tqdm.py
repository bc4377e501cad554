"""The progress bar of many processes on one terminal."""

from drivetrain.runtime.progress import tqdm as tqdm
