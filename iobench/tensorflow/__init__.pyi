from iobench.tensorflow.hooks import instrument as instrument
from iobench.tensorflow.keras_callback import KerasCallback as KerasCallback
from iobench.tensorflow.operation_kinds import OPERATION_KINDS as OPERATION_KINDS
from iobench.tensorflow.store_loader import TFStoreLoader as TFStoreLoader
