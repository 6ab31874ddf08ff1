from iobench.tensorflow.hooks import instrument as instrument
from iobench.tensorflow.keras_callback import KerasCallback as KerasCallback
from iobench.tensorflow.store_loader import TFStoreLoader as TFStoreLoader
from iobench.tensorflow.traced_work import OPERATION_KINDS as OPERATION_KINDS
