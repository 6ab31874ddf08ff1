from iobench.torch.device import TorchAccelerator as TorchAccelerator
from iobench.torch.device_time import DeviceTimer as DeviceTimer
from iobench.torch.observing import DataLoader as DataLoader
from iobench.torch.store_loader import StoreLoader as StoreLoader
